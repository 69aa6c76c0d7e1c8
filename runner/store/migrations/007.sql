-- What follows from a verdict.

-- What gates said of trees that may come again: the newest answers.
CREATE TABLE answers (
	seq  INTEGER PRIMARY KEY AUTOINCREMENT,
	key  BLOB NOT NULL UNIQUE, -- SHA-256 of gate, tree and image
	body TEXT NOT NULL,        -- JSON, a gates.Answer
	sum  BLOB NOT NULL         -- SHA-256 of key and body: a row that was damaged is none
);

-- A failure that stands though its gate does not block any more.
ALTER TABLE verdicts ADD COLUMN unresolved INTEGER NOT NULL DEFAULT 0;
DROP VIEW good;
CREATE VIEW good AS SELECT c.seq, c.id, c.feature FROM checkpoints c
	WHERE c.lost = 0 AND c.damaged = '' AND (c.promoted = 1
		OR EXISTS (SELECT 1 FROM verdicts v WHERE v.checkpoint = c.id AND v.status <> 'skipped')
		AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.checkpoint = c.id
			AND (v.unresolved = 1 OR v.status IN ('fail', 'error') AND v.mode IN ('block', 'mandatory'))));

-- Failures of checkpoints that were dropped, by the checkpoints that go on from them.
CREATE TABLE carried (
	checkpoint TEXT NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
	gate       TEXT NOT NULL,
	judged     TEXT NOT NULL, -- the checkpoint that failed
	body       TEXT NOT NULL, -- JSON, its verdict
	PRIMARY KEY (checkpoint, gate)
) WITHOUT ROWID;
CREATE INDEX checkpoints_alias ON checkpoints (alias_of) WHERE alias_of <> '';

CREATE TABLE approvals (
	seq        INTEGER PRIMARY KEY,
	feature    TEXT NOT NULL REFERENCES features (id) ON DELETE CASCADE,
	task       TEXT NOT NULL,
	checkpoint TEXT NOT NULL, -- no foreign key: it says what was judged, also when that has been dropped
	gate       TEXT NOT NULL,
	at         INTEGER NOT NULL,
	uid        INTEGER NOT NULL,
	person     TEXT NOT NULL,
	reason     TEXT NOT NULL CHECK (reason <> ''),
	body       TEXT NOT NULL -- JSON, the verdict that was approved
);
CREATE INDEX approvals_feature ON approvals (feature, seq);
