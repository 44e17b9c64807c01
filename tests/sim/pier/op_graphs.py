"""Op-graphs that together have every operator and implementation, as a start for mutation."""

import sqlite3
from pathlib import Path

HAND_WRITTEN = (
    r"""%opgraph(e) { duration = 4 limit = 50
  %operator(s) { type = scan implementation = Local table = r tap = output }
  %operator(f) { type = flowcontrol sources[] = s probe = set period = 1 }
  %operator(g) { type = groupby implementation = DualFlow sources[] = f groupby[k] = $k aggregates[n] = sum($v)
                 period = 1 }
  %operator(c) { type = cache implementation = MemUpdateCache sources[] = g key[] = $k lifetime = 3 }
  %operator(q) { type = queue sources[] = c }
  %operator(d) { type = dupelim sources[] = q errors = true }
  %operator(o) { type = result sources[] = d once[] = k } }""",
    r"""%opgraph(sent) { duration = 4
  %operator(s) { type = scan implementation = Local table = r }
  %operator(p) { type = put implementation = DHTMessage sources[] = s ns = "m\qi" key[] = $k suffix = $v
                 lifetime = 3 } }
%opgraph(seen) { duration = 4
  %operator(s) { type = scan implementation = DHTMessage ns = "m\qi" annotate = w errors = true }
  %operator(u) { type = dupelim sources[] = s fields[] = k }
  %operator(o) { type = result sources[] = u } }""",
    r"""%opgraph(straight) { duration = 4
  %operator(s) { type = scan implementation = Local table = r }
  %operator(t) { type = tee sources[] = s }
  %operator(p) { type = put implementation = IP sources[] = t port = p address = $k errors = true }
  %operator(b) { type = put implementation = Broadcast sources[] = t port = b }
  %operator(n) { type = null implementation = NullSink sources[] = t } }
%opgraph(heard) { duration = 4
  %operator(a) { type = scan implementation = IP port = p }
  %operator(b) { type = scan implementation = IP port = b }
  %operator(u) { type = union sources[] = a sources[] = b }
  %operator(o) { type = result sources[] = u } }""",
    r"""%opgraph(index) { duration = 4
  %operator(s) { type = scan implementation = Local table = r }
  %operator(p) { type = put implementation = PHT sources[] = s ns = i key[] = $k lifetime = 3 renew = 1 suffix = $v } }
%opgraph(range) { duration = 4 ns = i low = 0 high = 100
  %operator(s) { type = scan implementation = Local table = r }
  %operator(o) { type = result sources[] = s } }
%opgraph(read) { duration = 4 ns = any rid = 1
  %operator(i) { type = scan implementation = PHT ns = i low = -5 high = 9 }
  %operator(o) { type = result sources[] = i } }""",
    r"""%opgraph(fetched) { duration = 4
  %operator(s) { type = scan implementation = Local table = r }
  %operator(d) { type = scan implementation = DHT ns = S }
  %operator(l) { type = scan implementation = Local table = s column = k }
  %operator(j) { type = join implementation = Index sources[] = s sources[] = d left[] = $k right[] = $k errors = true
    %predicate(p) { type = or
      %predicate(a) { type = atomic leftexpression = $v op = ">" rightexpression = 0::integer }
      %predicate(b) { type = atomic leftexpression = $w op = notequals rightexpression = x::string } } }
  %operator(i) { type = join implementation = Index sources[] = s sources[] = l
                 left[] = $k left[] = $ts right[] = $k right[] = $ts }
  %operator(p) { type = put implementation = DHT sources[] = s ns = S key[] = $k renew = 1 }
  %operator(u) { type = union sources[] = j sources[] = i }
  %operator(o) { type = result sources[] = u once[] = k asker = 1 query = q1.1 } }""",
    r"""%opgraph(routed) { duration = 4
  %operator(s) { type = scan implementation = Local table = r }
  %operator(z) { type = scan implementation = Local table = s }
  %operator(e) { type = eddy sources[] = s sources[] = z modules[] = a modules[] = j policy = lottery chunk = 2 }
  %operator(a) { type = selection sources[] = e
    %predicate(p) { type = atomic leftexpression = $v op = ">" rightexpression = 0::integer } }
  %operator(ba) { type = put implementation = Eddy sources[] = a eddy = e }
  %operator(j) { type = join sources[] = e left[] = $v right[] = $w lifetime = 1 }
  %operator(bj) { type = put implementation = Eddy sources[] = j eddy = e }
  %operator(x) { type = projection implementation = Generate sources[] = e columns[y] = bucket($ts, 5::integer)
    columns[n] = if(isnull($v), 1::integer, tointeger($v)) columns[t] = substring(concat($v, x::string), 1::integer)
    keep = true errors = true }
  %operator(o) { type = result sources[] = x } }""",
    r"""%opgraph(closure) { duration = 4
  %operator(e) { type = scan implementation = Local table = r }
  %operator(e2) { type = projection sources[] = e fields[] = k fields[] = v rename[k] = f2 rename[v] = t2 table = step }
  %operator(u) { type = union sources[] = e sources[] = back }
  %operator(d) { type = dupelim sources[] = u }
  %operator(q) { type = queue sources[] = d }
  %operator(j) { type = join sources[] = q sources[] = e2 left[] = $v right[] = $f2 }
  %operator(back) { type = projection implementation = Generate sources[] = j columns[k] = $k columns[v] = $t2
                    columns[ts] = $ts table = r }
  %operator(o) { type = result sources[] = d } }""",
    r"""%opgraph(files) { duration = 4 limit = 9
  %operator(c) { type = scan implementation = CSV file = "DIRECTORY/log.csv" table = log types[port] = integer }
  %operator(d) { type = scan implementation = JDBC url = "jdbc:sqlite:DIRECTORY/log.db" sql = "SELECT * FROM log"
                 table = log2 }
  %operator(f) { type = flowcontrol sources[] = c probe = set count = 2 rate = 3
    %predicate(p) { type = atomic leftexpression = $port op = ">" rightexpression = 0::integer } }
  %operator(j) { type = join sources[] = f sources[] = d left[] = $port right[] = $port tap = both }
  %operator(t) { type = top sources[] = j order[] = $port direction[] = "desc nulls last" count = 2 group[] = $host }
  %operator(m) { type = cache implementation = MemCache sources[] = t lifetime = 1 }
  %operator(z) { type = null implementation = NullSource }
  %operator(n) { type = null sources[] = m }
  %operator(u) { type = union sources[] = n sources[] = z }
  %operator(g) { type = groupby sources[] = u groupby[port] = $port aggregates[n] = count() }
  %operator(b) { type = put implementation = Bloom sources[] = g ns = b key[] = $port bits = 64 hashes = 2 } }""",
)


def hand_written(directory: Path) -> list[str]:
    """The texts, and in the directory the files that they read, with lines and values that do not fit."""
    (directory / "log.csv").write_text("host,port\na,1\nb,x\nc,\nb,3,4\n")
    with sqlite3.connect(directory / "log.db") as database:
        database.execute("CREATE TABLE log (host TEXT, port)")
        database.execute("INSERT INTO log VALUES ('a', 1), ('b', NULL), ('c', 'x'), ('d', 2.5), ('e', x'00ff')")
    return [text.replace("DIRECTORY", str(directory)) for text in HAND_WRITTEN]
