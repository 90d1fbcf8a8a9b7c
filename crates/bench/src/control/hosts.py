"""Copies the first host in a Placement database, with all providers below it and their inventories,
until there are as many hosts as asked for. Only the numbers, the names and the first eight digits of
the UUIDs differ; host n is called hn.

usage: hosts.py DATABASE HOSTS
"""

import sqlite3
import sys

path, hosts = sys.argv[1], int(sys.argv[2])
database = sqlite3.connect(path)
first, tree = database.execute(
    "SELECT min(id), count(*) FROM resource_providers WHERE root_provider_id ="
    " (SELECT min(root_provider_id) FROM resource_providers)"
).fetchone()
there = database.execute("SELECT count(*) FROM resource_providers").fetchone()[0] // tree
for n in range(there, hosts):
    host = {"n": n, "by": n * tree, "first": first, "last": first + tree - 1}
    database.execute(
        "INSERT INTO resource_providers (created_at, updated_at, id, uuid, name, generation,"
        " root_provider_id, parent_provider_id)"
        " SELECT created_at, updated_at, id + :by, printf('%08x', :n) || substr(uuid, 9),"
        " 'h' || :n || substr(name, 3), generation, root_provider_id + :by, parent_provider_id + :by"
        " FROM resource_providers WHERE id BETWEEN :first AND :last",
        host,
    )
    database.execute(
        "INSERT INTO inventories (created_at, updated_at, resource_provider_id, resource_class_id,"
        " total, reserved, min_unit, max_unit, step_size, allocation_ratio)"
        " SELECT created_at, updated_at, resource_provider_id + :by, resource_class_id, total,"
        " reserved, min_unit, max_unit, step_size, allocation_ratio"
        " FROM inventories WHERE resource_provider_id BETWEEN :first AND :last",
        host,
    )
database.commit()
