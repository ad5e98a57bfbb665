"""Ask and tell: the messages between a study and its clients, and the handle of one trial."""
