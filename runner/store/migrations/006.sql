-- One log in the place of audit, file_events with event_sources, and network_events, whose rows Go code carries over: package
-- chain says what the hashes are of. No foreign keys to what it tells of: it outlives that.
CREATE TABLE sources ( -- whose rows are: ids, stored once
	id      INTEGER PRIMARY KEY,
	feature TEXT NOT NULL,
	task    TEXT NOT NULL,
	UNIQUE (feature, task)
) STRICT;
CREATE INDEX sources_task ON sources (task) WHERE task <> '';

CREATE TABLE log (
	seq    INTEGER PRIMARY KEY,                -- of the last event that the row stands for
	count  INTEGER NOT NULL CHECK (count > 0), -- of events
	at     INTEGER NOT NULL,
	source INTEGER NOT NULL REFERENCES sources (id),
	step   INTEGER NOT NULL,
	kind   TEXT NOT NULL,
	body   TEXT NOT NULL, -- JSON
	hash   BLOB NOT NULL
) STRICT;
CREATE INDEX log_source ON log (source, seq);
-- What grows by itself: it is counted, and its oldest rows go.
CREATE INDEX log_bulk ON log (kind, source, seq, count) WHERE kind IN ('files', 'network', 'network-refused');
CREATE INDEX log_gaps ON log (seq) WHERE kind IN ('trim', 'lost');

CREATE TRIGGER sources_no_update BEFORE UPDATE ON sources
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;

CREATE TRIGGER sources_no_delete BEFORE DELETE ON sources
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;

CREATE TRIGGER log_appends BEFORE INSERT ON log
WHEN NEW.seq - NEW.count <> coalesce((SELECT max(seq) FROM log), NEW.seq - NEW.count)
BEGIN SELECT RAISE(ABORT, 'the log only grows at its end'); END;

CREATE TRIGGER log_no_update BEFORE UPDATE ON log
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;

-- A row goes only if it is of what grows by itself, and once a newer row has said that it goes.
CREATE TRIGGER log_no_delete BEFORE DELETE ON log
WHEN OLD.kind NOT IN ('files', 'network', 'network-refused')
	OR NOT EXISTS (SELECT 1 FROM log WHERE kind IN ('trim', 'lost') AND seq > OLD.seq)
BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;
