-- One log in the place of audit, file_events with event_sources, and network_events, whose rows Go code carries over: package
-- chain says what the hashes are of. No foreign keys: it outlives what it tells of.
CREATE TABLE log (
	seq     INTEGER PRIMARY KEY,                 -- of the last event that the row stands for
	count   INTEGER NOT NULL CHECK (count > 0),  -- of events
	at      INTEGER NOT NULL,
	feature TEXT NOT NULL,
	task    TEXT NOT NULL,
	step    INTEGER NOT NULL,
	kind    TEXT NOT NULL,
	body    TEXT NOT NULL, -- JSON
	hash    BLOB NOT NULL
) STRICT;
CREATE INDEX log_feature ON log (feature, seq);
-- What grows by itself: it is counted, and its oldest rows go.
CREATE INDEX log_bulk ON log (kind, feature, seq, count) WHERE kind IN ('files', 'network', 'network-refused');
CREATE INDEX log_trims ON log (seq) WHERE kind = 'trim';

CREATE TRIGGER log_appends BEFORE INSERT ON log
WHEN NEW.seq - NEW.count <> coalesce((SELECT max(seq) FROM log), NEW.seq - NEW.count)
BEGIN SELECT RAISE(ABORT, 'the log only grows at its end'); END;

CREATE TRIGGER log_no_update BEFORE UPDATE ON log
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;

-- A row goes only if it is of what grows by itself, and once a newer row has said that it goes.
CREATE TRIGGER log_no_delete BEFORE DELETE ON log
WHEN OLD.kind NOT IN ('files', 'network', 'network-refused') OR NOT EXISTS (SELECT 1 FROM log WHERE kind = 'trim' AND seq > OLD.seq)
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;
