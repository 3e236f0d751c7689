-- The proof of a plan, as it was found before the claim: null for a rejection and for what is older than proofs.
-- The plan names the digest and approvals bind to the plan's digest, so that what was approved is this very text.
set local role backstay_owner;
alter table backstay.intents add column proof text, add column proof_digest text;
