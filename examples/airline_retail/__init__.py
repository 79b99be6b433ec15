"""The main job: recorded airline and retail conversations played through Turnlog against tools that change a database.

Who owns what:

- `recording`: what was recorded (user, model, tools) and the truth its tool calls must give; pure reading, no tau2.
- `tau2_domain`: the tau2 toolkits over an immutable base with a copy-on-access overlay per run.
- `world`: the SQLite file the tools act on, one transaction a call, with the effect ledger.
- `script`: what a model that follows the recording answers, and what it must have been told before.
- `http1` and `model_server`: that model as a process of its own behind an OpenAI-like endpoint.
- `toolset`: the tools of both domains as Turnlog toolsets; `agents`: the recorded agents.
- `stage`: everything put up; `driver`: the recorded users; `chaos`: kill -9 meanwhile.
- `judge`: what came out, from the journal, the world and the model's log; `oracle`: the truth where no file has it.
- `play`: the command; `demo`: the same with an introduction.
"""
