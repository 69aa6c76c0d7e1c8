-- Checkpoints, forks, live features, disk units.

ALTER TABLE features ADD COLUMN lineage   TEXT    NOT NULL DEFAULT ''; -- whose idx it uses; '' is its own
ALTER TABLE features ADD COLUMN origin    TEXT    NOT NULL DEFAULT ''; -- forked from
ALTER TABLE features ADD COLUMN detached  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE features ADD COLUMN ttl       INTEGER NOT NULL DEFAULT 0;  -- nanoseconds
ALTER TABLE features ADD COLUMN idle      INTEGER NOT NULL DEFAULT 0;
ALTER TABLE features ADD COLUMN disk      INTEGER NOT NULL DEFAULT 0;  -- bytes
ALTER TABLE features ADD COLUMN inodes    INTEGER NOT NULL DEFAULT 0;
ALTER TABLE features ADD COLUMN mechanism TEXT    NOT NULL DEFAULT '';
ALTER TABLE features ADD COLUMN driver    TEXT    NOT NULL DEFAULT '';
CREATE INDEX features_lineage ON features (lineage) WHERE lineage <> '';
DROP INDEX features_unfinished;
CREATE INDEX features_unfinished ON features (id) WHERE retired = 1 OR promoting = 1 OR detached = 1;

-- A profile is some 7 KB and the same for most tasks: it is stored once. tasks.profile holds those of version 1.
CREATE TABLE profiles (
	id   INTEGER PRIMARY KEY,
	body TEXT NOT NULL, -- JSON
	hash BLOB NOT NULL UNIQUE -- SHA-256 of body
);
ALTER TABLE tasks ADD COLUMN profile_id INTEGER REFERENCES profiles (id);
ALTER TABLE tasks ADD COLUMN options    TEXT; -- JSON
CREATE INDEX tasks_profile ON tasks (profile_id);

ALTER TABLE steps ADD COLUMN retry      INTEGER NOT NULL DEFAULT 0;
ALTER TABLE steps ADD COLUMN checkpoint TEXT    NOT NULL DEFAULT ''; -- the state after it
ALTER TABLE steps ADD COLUMN options    TEXT; -- JSON

-- Parents, aliases and tasks are no foreign keys: what they name may have been dropped.
CREATE TABLE checkpoints (
	seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- order of creation
	id         TEXT NOT NULL UNIQUE,
	feature    TEXT NOT NULL REFERENCES features (id) ON DELETE CASCADE,
	parent     TEXT NOT NULL,
	alias_of   TEXT NOT NULL,
	task       TEXT NOT NULL,
	step       INTEGER NOT NULL,
	reason     TEXT NOT NULL,
	label      TEXT NOT NULL,
	created    INTEGER NOT NULL,
	generation INTEGER NOT NULL,
	added      INTEGER NOT NULL,
	modified   INTEGER NOT NULL,
	deleted    INTEGER NOT NULL,
	changed    INTEGER NOT NULL, -- bytes of added and modified files
	bytes      INTEGER NOT NULL, -- of its own layer
	digest     TEXT NOT NULL,
	indexed    INTEGER NOT NULL,
	durable    INTEGER NOT NULL,
	promoted   INTEGER NOT NULL,
	lost       INTEGER NOT NULL,
	damaged    TEXT NOT NULL -- why it cannot be used
);
CREATE INDEX checkpoints_feature ON checkpoints (feature, seq);

CREATE TABLE verdicts (
	checkpoint TEXT NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
	gate       TEXT NOT NULL,
	status     TEXT NOT NULL,
	mode       TEXT NOT NULL,
	at         INTEGER NOT NULL,
	body       TEXT NOT NULL, -- JSON
	PRIMARY KEY (checkpoint, gate)
) WITHOUT ROWID;

-- A checkpoint is good when it was promoted, or when a gate ran and none that blocks failed.
CREATE VIEW good AS SELECT c.seq, c.id, c.feature FROM checkpoints c
	WHERE c.lost = 0 AND c.damaged = '' AND (c.promoted = 1
		OR EXISTS (SELECT 1 FROM verdicts v WHERE v.checkpoint = c.id AND v.status <> 'skipped')
		AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.checkpoint = c.id AND v.status IN ('fail', 'error') AND v.mode IN ('block', 'mandatory')));

-- There are many file events and they are alike: what most of them share is stored once.
CREATE TABLE event_sources (
	id      INTEGER PRIMARY KEY,
	feature TEXT NOT NULL REFERENCES features (id) ON DELETE CASCADE,
	task    TEXT NOT NULL,
	step    INTEGER NOT NULL,
	stack   TEXT NOT NULL,
	kind    TEXT NOT NULL,
	UNIQUE (feature, task, step, stack, kind)
);
-- seq is shared with audit: together they are one sequence.
CREATE TABLE file_events (
	seq    INTEGER PRIMARY KEY AUTOINCREMENT,
	source INTEGER NOT NULL REFERENCES event_sources (id) ON DELETE CASCADE,
	at     INTEGER NOT NULL,
	path   BLOB NOT NULL,
	size   INTEGER NOT NULL
);
CREATE INDEX file_events_source ON file_events (source);

-- No foreign key: a key stands for its task also when that has gone.
CREATE TABLE idempotency (
	key     TEXT PRIMARY KEY,
	digest  TEXT NOT NULL, -- of what was asked
	id      TEXT NOT NULL, -- of the task or checkpoint
	created INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_created ON idempotency (created);

CREATE TABLE timings (
	seq     INTEGER PRIMARY KEY,
	feature TEXT NOT NULL REFERENCES features (id) ON DELETE CASCADE,
	kind    TEXT NOT NULL,
	at      INTEGER NOT NULL,
	ns      INTEGER NOT NULL
);
CREATE INDEX timings_feature ON timings (feature, kind, seq);
