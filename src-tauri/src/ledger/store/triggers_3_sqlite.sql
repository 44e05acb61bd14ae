
-- Claims, batches and settlements are as immutable as transfers. REPLACE deletes without firing a delete trigger, so
-- inserts over a row are refused too.

CREATE TRIGGER claim_is_never_updated BEFORE UPDATE ON claim
BEGIN SELECT RAISE(ABORT, 'a claim is immutable'); END;
CREATE TRIGGER claim_is_never_deleted BEFORE DELETE ON claim
BEGIN SELECT RAISE(ABORT, 'a claim is immutable'); END;
CREATE TRIGGER claim_is_never_replaced BEFORE INSERT ON claim
WHEN EXISTS (SELECT 1 FROM claim WHERE wallet = NEW.wallet AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'a claim is immutable'); END;

CREATE TRIGGER batch_is_never_updated BEFORE UPDATE ON batch
BEGIN SELECT RAISE(ABORT, 'a batch is immutable'); END;
CREATE TRIGGER batch_is_never_deleted BEFORE DELETE ON batch
BEGIN SELECT RAISE(ABORT, 'a batch is immutable'); END;
CREATE TRIGGER batch_is_never_replaced BEFORE INSERT ON batch
WHEN EXISTS (SELECT 1 FROM batch WHERE batch = NEW.batch)
BEGIN SELECT RAISE(ABORT, 'a batch is immutable'); END;

CREATE TRIGGER settlement_is_never_updated BEFORE UPDATE ON settlement
BEGIN SELECT RAISE(ABORT, 'a settlement is immutable'); END;
CREATE TRIGGER settlement_is_never_deleted BEFORE DELETE ON settlement
BEGIN SELECT RAISE(ABORT, 'a settlement is immutable'); END;
CREATE TRIGGER settlement_is_never_replaced BEFORE INSERT ON settlement
WHEN EXISTS (SELECT 1 FROM settlement WHERE wallet = NEW.wallet
             AND (lifetime_from = NEW.lifetime_from OR sequence = NEW.sequence))
BEGIN SELECT RAISE(ABORT, 'a settlement is immutable'); END;
