-- What a key answers once its task has gone with its feature: JSON, the task's result.
ALTER TABLE idempotency ADD COLUMN result TEXT;
