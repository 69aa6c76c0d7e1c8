-- What sandboxes wanted of the network. No foreign keys: it outlives what it tells of, as the trail does.
-- seq is shared with audit and file_events: together they are one sequence.
CREATE TABLE network_events (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	at      INTEGER NOT NULL,
	feature TEXT NOT NULL,
	task    TEXT NOT NULL,
	step    INTEGER NOT NULL,
	body    TEXT NOT NULL -- JSON, an egress.Event
);
CREATE INDEX network_events_feature ON network_events (feature, seq);
