
-- Claims, batches and settlements are as immutable as transfers.

CREATE FUNCTION row_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a % is immutable', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER claim_is_never_changed BEFORE UPDATE OR DELETE ON claim
FOR EACH ROW EXECUTE FUNCTION row_is_immutable();
CREATE TRIGGER claim_is_never_emptied BEFORE TRUNCATE ON claim
FOR EACH STATEMENT EXECUTE FUNCTION row_is_immutable();

CREATE TRIGGER batch_is_never_changed BEFORE UPDATE OR DELETE ON batch
FOR EACH ROW EXECUTE FUNCTION row_is_immutable();
CREATE TRIGGER batch_is_never_emptied BEFORE TRUNCATE ON batch
FOR EACH STATEMENT EXECUTE FUNCTION row_is_immutable();

CREATE TRIGGER settlement_is_never_changed BEFORE UPDATE OR DELETE ON settlement
FOR EACH ROW EXECUTE FUNCTION row_is_immutable();
CREATE TRIGGER settlement_is_never_emptied BEFORE TRUNCATE ON settlement
FOR EACH STATEMENT EXECUTE FUNCTION row_is_immutable();
