"""Reading the journal as an outsider does: one partition as runs, one run as a timeline, a state, a verdict.

    entries       records with their verdict by rule J1 (`turnlog.kafka.fenced`) and their decoded value
    reading       one partition or one run from the log
    history       one run folded: its state at any step
    timeline      events as lines for people
    verification  every recorded arrival decided again, the chain and the fences checked

Nothing in here writes, and nothing trusts the loop: only the log and the pure core.
"""
