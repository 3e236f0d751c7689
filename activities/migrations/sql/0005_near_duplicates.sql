-- Which calls were asked for, whatever key they had: the same tool and arguments again, in other words or another
-- conversation, is done only when a person says so. Read and written at admission, under a lock per near-key; written
-- in the very statement that makes the intent, so that neither a foreign key nor a unique one would see anything new.

set local role backstay_owner;
set local search_path to backstay;

create table near_duplicates (
    near_key    text not null,
    intent_key  text not null,
    step_id     text not null
);
create index near_duplicates_key on near_duplicates (near_key);

grant select on near_duplicates to backstay_app, backstay_readonly;
grant insert on near_duplicates to backstay_app;
