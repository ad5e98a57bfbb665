"""How often things are restarted before they count as failed, and why the limits differ.

=====================  =====  ==========================================================================================
constant               limit  reason
=====================  =====  ==========================================================================================
TRIAL_RESTARTS             2  A trial is cheap, and others like it follow: after a third death the trial is the cause.
RAY_STARTS                 3  Ray gives its own processes 30 s to start, too few on a busy machine; a fourth try would
                              only delay the error of a broken installation.
RUN_RESTARTS               3  A run of a plan is long, and nodes do fail; but each restart costs the time since the last
                              checkpoint on the whole machine, so more than three in one slot need a person.
LOST_HOLDERS               5  Holders of an asked trial vanish for unrelated reasons, such as the end of their slot;
                              only several in a row count against the trial.
STUDY_STARTS              20  Workers stop for maintenance and slots while a study runs for days; only a study that
                              kills every worker reaches this.
=====================  =====  ==========================================================================================
"""

TRIAL_RESTARTS = 2
RAY_STARTS = 3
RUN_RESTARTS = 3
LOST_HOLDERS = 5
STUDY_STARTS = 20
