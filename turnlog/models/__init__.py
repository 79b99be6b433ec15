"""Model providers: one interface, one file per wire format, one shared kit (`http`, `statuses`, `text`, `errors`)."""
