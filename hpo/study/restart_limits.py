"""How often something is restarted before it counts as failed, and why the limits differ.

=====================  =====  ==========================================================================================
constant               limit  reason
=====================  =====  ==========================================================================================
TRIAL_RESTARTS             2  A trial is cheap, and similar trials follow: after a third crash, the trial itself is the
                              likely cause.
RAY_STARTS                 3  Ray gives its own processes 30 s to start, which is too short on a busy machine; a fourth
                              attempt would only delay the error of a broken installation.
RUN_RESTARTS               3  A run of a plan is long, and nodes do fail. But each restart costs the time since the last
                              checkpoint on the whole machine, so more than three in one slot need a person.
LOST_HOLDERS               5  Clients that hold a trial disappear for unrelated reasons, such as the end of their slot;
                              only several losses in a row count against the trial.
STUDY_STARTS              20  Workers stop for maintenance and at the end of slots while a study runs for days; only a
                              study that kills every worker reaches this limit.
=====================  =====  ==========================================================================================
"""

TRIAL_RESTARTS = 2
RAY_STARTS = 3
RUN_RESTARTS = 3
LOST_HOLDERS = 5
STUDY_STARTS = 20
