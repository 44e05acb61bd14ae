-- Each hub numbers its own changes, so that hubs that share a store do not wait for each other.

CREATE TABLE meter_3 (
  session TEXT PRIMARY KEY,
  hub TEXT NOT NULL,
  wallet TEXT NOT NULL,
  epoch BIGINT NOT NULL CHECK (epoch >= 0),
  assignments BIGINT NOT NULL CHECK (assignments >= 0),
  work_bytes BIGINT NOT NULL CHECK (work_bytes >= 0),
  voided_bytes BIGINT NOT NULL CHECK (voided_bytes >= 0),
  raw_bytes BIGINT NOT NULL CHECK (raw_bytes >= 0),
  closed BIGINT NOT NULL CHECK (closed IN (0, 1)),
  change_seq BIGINT NOT NULL,
  UNIQUE (hub, change_seq),
  CHECK (voided_bytes <= work_bytes)
);
INSERT INTO meter_3 SELECT session, hub, wallet, epoch, assignments, work_bytes, voided_bytes, raw_bytes, closed,
  change_seq FROM meter;
DROP TABLE meter;
ALTER TABLE meter_3 RENAME TO meter;
CREATE INDEX meter_by_wallet ON meter (wallet);
INSERT INTO change_counter (name, value)
  SELECT DISTINCT 'meter:' || meter.hub, change_counter.value FROM meter, change_counter
  WHERE change_counter.name = 'meter';
DELETE FROM change_counter WHERE name = 'meter';

-- Where each start of a hub begins in its changes: tells whether a gateway's position is of this history, or of one
-- that a backup was restored over.
CREATE TABLE hub_start (
  run TEXT PRIMARY KEY,
  hub TEXT NOT NULL,
  epoch BIGINT NOT NULL,
  change_seq BIGINT NOT NULL,
  UNIQUE (hub, epoch)
);
ALTER TABLE poll_position ADD COLUMN run TEXT NOT NULL DEFAULT '';

-- A check reads a session's transfers in order, from this index alone.
CREATE INDEX transfer_by_session ON transfer (kind, session, bytes_from, bytes_to, rate, amount, wallet);

-- What wallets ask to be paid; the newest of a wallet counts.
CREATE TABLE claim (
  wallet TEXT NOT NULL,
  sequence BIGINT NOT NULL CHECK (sequence > 0),
  lifetime_nano BIGINT NOT NULL CHECK (lifetime_nano > 0),
  expires_unix_s BIGINT NOT NULL,
  words TEXT NOT NULL,
  signature TEXT NOT NULL,
  created_unix_ms BIGINT NOT NULL,
  PRIMARY KEY (wallet, sequence)
);

-- Batches of settlements, each signed by the operator.
CREATE TABLE batch (
  batch BIGINT PRIMARY KEY,
  operator TEXT NOT NULL,
  wallets BIGINT NOT NULL,
  total_nano BIGINT NOT NULL,
  root TEXT NOT NULL,
  signature TEXT NOT NULL,
  created_unix_ms BIGINT NOT NULL
);
INSERT INTO change_counter (name, value) VALUES ('batch', 0);

-- Transfers pending -> settled: the nano-KVR lifetime_from..lifetime_to of what a wallet ever earned.
CREATE TABLE settlement (
  wallet TEXT NOT NULL,
  lifetime_from BIGINT NOT NULL CHECK (lifetime_from >= 0),
  lifetime_to BIGINT NOT NULL,
  sequence BIGINT NOT NULL,
  batch BIGINT NOT NULL,
  claim_sequence BIGINT NOT NULL,
  debit TEXT NOT NULL,
  credit TEXT NOT NULL,
  created_unix_ms BIGINT NOT NULL,
  PRIMARY KEY (wallet, lifetime_from),
  UNIQUE (wallet, sequence),
  CHECK (lifetime_to > lifetime_from)
);
