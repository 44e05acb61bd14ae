-- A void looks for all rows of a wallet.

CREATE INDEX meter_by_wallet ON meter (wallet);
