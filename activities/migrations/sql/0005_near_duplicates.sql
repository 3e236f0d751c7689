-- Which calls were asked for, whatever key they had: the same tool and arguments again, in other words or another
-- conversation, is done only when a person says so. Read and written at admission, under a lock per near-key.

set local role backstay_owner;
set local search_path to backstay;

create table near_duplicates (
    near_key    text not null,
    intent_key  text not null references intents,
    step_id     text not null,
    primary key (near_key, intent_key, step_id)
);

grant select on near_duplicates to backstay_app, backstay_readonly;
grant insert on near_duplicates to backstay_app;
