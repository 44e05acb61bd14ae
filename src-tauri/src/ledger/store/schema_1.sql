-- One text for SQLite and PostgreSQL: ids are TEXT, counters and money are BIGINT, nothing else.

CREATE TABLE hub (
  hub TEXT PRIMARY KEY,
  epoch BIGINT NOT NULL CHECK (epoch >= 0)
);

-- The order of meter changes. One row, locked by its writer until commit, so that no reader skips a change.
CREATE TABLE change_counter (
  name TEXT PRIMARY KEY,
  value BIGINT NOT NULL
);
INSERT INTO change_counter (name, value) VALUES ('meter', 0);

CREATE TABLE meter (
  session TEXT PRIMARY KEY,
  hub TEXT NOT NULL,
  wallet TEXT NOT NULL,
  epoch BIGINT NOT NULL CHECK (epoch >= 0),
  assignments BIGINT NOT NULL CHECK (assignments >= 0),
  work_bytes BIGINT NOT NULL CHECK (work_bytes >= 0),
  voided_bytes BIGINT NOT NULL CHECK (voided_bytes >= 0),
  raw_bytes BIGINT NOT NULL CHECK (raw_bytes >= 0),
  closed BIGINT NOT NULL CHECK (closed IN (0, 1)),
  change_seq BIGINT NOT NULL UNIQUE,
  CHECK (voided_bytes <= work_bytes)
);

CREATE TABLE poll_position (
  hub TEXT PRIMARY KEY,
  change_seq BIGINT NOT NULL CHECK (change_seq >= 0)
);

CREATE TABLE credit_cursor (
  session TEXT PRIMARY KEY,
  hub TEXT NOT NULL,
  wallet TEXT NOT NULL,
  change_seq BIGINT NOT NULL,
  work_bytes BIGINT NOT NULL CHECK (work_bytes >= 0),
  voided_bytes BIGINT NOT NULL CHECK (voided_bytes >= 0),
  credited_nano BIGINT NOT NULL CHECK (credited_nano >= 0),
  voided_nano BIGINT NOT NULL CHECK (voided_nano >= 0),
  CHECK (voided_nano <= credited_nano)
);

CREATE TABLE account (
  id TEXT PRIMARY KEY,
  debits BIGINT NOT NULL CHECK (debits >= 0),
  credits BIGINT NOT NULL CHECK (credits >= 0),
  CHECK (id NOT LIKE 'wallet:%' OR credits >= debits)
);

CREATE TABLE wallet (
  address TEXT PRIMARY KEY,
  sequence BIGINT NOT NULL CHECK (sequence >= 0),
  work_bytes BIGINT NOT NULL CHECK (work_bytes >= 0),
  last_credit_unix_ms BIGINT NOT NULL
);

CREATE TABLE transfer (
  id TEXT PRIMARY KEY,
  wallet TEXT NOT NULL,
  sequence BIGINT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('credit', 'void')),
  session TEXT NOT NULL,
  bytes_from BIGINT NOT NULL CHECK (bytes_from >= 0),
  bytes_to BIGINT NOT NULL,
  rate BIGINT NOT NULL CHECK (rate > 0),
  amount BIGINT NOT NULL CHECK (amount > 0),
  debit TEXT NOT NULL,
  credit TEXT NOT NULL,
  created_unix_ms BIGINT NOT NULL,
  UNIQUE (wallet, sequence),
  CHECK (bytes_to > bytes_from)
);
