-- Transfers are immutable. REPLACE would delete without firing the delete trigger, so inserts are guarded too.

CREATE TRIGGER transfer_is_never_updated BEFORE UPDATE ON transfer
BEGIN SELECT RAISE(ABORT, 'a transfer is immutable'); END;

CREATE TRIGGER transfer_is_never_deleted BEFORE DELETE ON transfer
BEGIN SELECT RAISE(ABORT, 'a transfer is immutable'); END;

CREATE TRIGGER transfer_is_never_replaced BEFORE INSERT ON transfer
WHEN EXISTS (SELECT 1 FROM transfer WHERE id = NEW.id OR (wallet = NEW.wallet AND sequence = NEW.sequence))
BEGIN SELECT RAISE(ABORT, 'a transfer is immutable'); END;
