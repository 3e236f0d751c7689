-- What reading a landed remote write back has found: differences that others may have made, or that it could not be read.

set local role backstay_owner;
set local search_path to backstay;

alter table effects add column warnings text;   -- JSON array of what people are told; null: nothing
grant update (warnings) on effects to backstay_app;
