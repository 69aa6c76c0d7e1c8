-- The state machines, copied from runner.Transitions and runner.StepTransitions by the migration that follows.
CREATE TABLE transitions (
	machine TEXT NOT NULL, -- task, step
	old     TEXT NOT NULL,
	new     TEXT NOT NULL,
	PRIMARY KEY (machine, old, new)
) WITHOUT ROWID;

CREATE TABLE features (
	id        TEXT PRIMARY KEY,
	name      TEXT NOT NULL,
	workspace TEXT NOT NULL,
	idx       INTEGER NOT NULL UNIQUE CHECK (idx >= 0), -- its id range
	direct    INTEGER NOT NULL,                         -- owner mapped directly: no idmapped mounts
	labels    TEXT,                                     -- JSON object
	created   INTEGER NOT NULL,                         -- nanoseconds since 1970, as every time here
	retired   INTEGER NOT NULL DEFAULT 0,
	promoting INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX features_name ON features (name) WHERE retired = 0;
CREATE INDEX features_unfinished ON features (id) WHERE retired = 1 OR promoting = 1;

CREATE TABLE tasks (
	seq            INTEGER PRIMARY KEY, -- order of submission
	id             TEXT NOT NULL UNIQUE,
	feature        TEXT NOT NULL REFERENCES features (id) ON DELETE CASCADE,
	state          TEXT NOT NULL,
	profile        TEXT NOT NULL, -- JSON, effective
	profile_digest TEXT NOT NULL,
	remove         INTEGER NOT NULL, -- --rm
	result         TEXT,          -- JSON
	created        INTEGER NOT NULL,
	updated        INTEGER NOT NULL
);
CREATE INDEX tasks_feature ON tasks (feature, seq);
CREATE INDEX tasks_live ON tasks (feature)
	WHERE state IN ('queued', 'preparing', 'running', 'paused', 'sealing', 'validating', 'promoting');

CREATE TABLE steps (
	task  TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
	n     INTEGER NOT NULL CHECK (n > 0),
	state TEXT NOT NULL,
	args  TEXT NOT NULL, -- JSON array
	PRIMARY KEY (task, n)
) WITHOUT ROWID;

-- No foreign keys: the trail outlives what it tells of.
CREATE TABLE audit (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	at      INTEGER NOT NULL,
	feature TEXT NOT NULL,
	task    TEXT NOT NULL,
	step    INTEGER NOT NULL,
	event   TEXT NOT NULL,
	old     TEXT NOT NULL,
	new     TEXT NOT NULL,
	cause   TEXT NOT NULL
);
CREATE INDEX audit_feature ON audit (feature, seq);

CREATE TRIGGER tasks_born BEFORE INSERT ON tasks WHEN NEW.state <> 'queued'
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER tasks_move BEFORE UPDATE OF state ON tasks
WHEN NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'task' AND old = OLD.state AND new = NEW.state)
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER steps_born BEFORE INSERT ON steps WHEN NEW.state <> 'not_started'
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER steps_move BEFORE UPDATE OF state ON steps
WHEN NOT EXISTS (SELECT 1 FROM transitions WHERE machine = 'step' AND old = OLD.state AND new = NEW.state)
BEGIN SELECT RAISE(ABORT, 'no such transition'); END;

CREATE TRIGGER transitions_fixed BEFORE DELETE ON transitions
BEGIN SELECT RAISE(ABORT, 'transitions are changed by migrations alone'); END;

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END;
