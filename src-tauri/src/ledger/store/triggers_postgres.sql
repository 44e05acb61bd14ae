-- Transfers are immutable: no row is changed or removed, and the table is not emptied.

CREATE FUNCTION transfer_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a transfer is immutable' USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE TRIGGER transfer_is_never_changed BEFORE UPDATE OR DELETE ON transfer
FOR EACH ROW EXECUTE FUNCTION transfer_is_immutable();

CREATE TRIGGER transfer_is_never_emptied BEFORE TRUNCATE ON transfer
FOR EACH STATEMENT EXECUTE FUNCTION transfer_is_immutable();
