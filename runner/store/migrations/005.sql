-- The profile that a feature begins under, before it has a task of its own: a fork's is that of where it came from, also when
-- that has gone.
ALTER TABLE features ADD COLUMN profile_id INTEGER REFERENCES profiles (id);
CREATE INDEX features_profile ON features (profile_id);

-- Of forks that there are, it is that of the nearest origin that had one.
UPDATE features SET profile_id = (
	WITH RECURSIVE line (id, n) AS (
		SELECT features.origin, 1
		UNION ALL SELECT f.origin, n + 1 FROM line JOIN features f ON f.id = line.id WHERE f.origin <> '')
	SELECT t.profile_id FROM line JOIN tasks t ON t.feature = line.id ORDER BY line.n, t.seq DESC LIMIT 1)
	WHERE origin <> '';
