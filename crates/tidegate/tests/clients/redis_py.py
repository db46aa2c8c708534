"""redis-py against the port given as argument, over both protocols."""
import sys
import threading

import redis

port = int(sys.argv[1])
# Old versions of the client speak the older protocol only.
protocols = [2, 3] if int(redis.__version__.split(".")[0]) >= 5 else [None]

for protocol in protocols:
    options = {} if protocol is None else {"protocol": protocol}
    client = redis.Redis(port=port, socket_timeout=20, **options)
    client.flushall()
    assert client.ping()
    assert client.set("a", 1, px=60000)
    assert client.incr("a") == 2
    assert client.get("absent") is None
    client.set("bytes", b"\x00\r\n\xff")
    assert client.get("bytes") == b"\x00\r\n\xff"
    client.hset("h", mapping={"x": 1, "y": 2})
    assert client.hgetall("h") == {b"x": b"1", b"y": b"2"}
    client.zadd("z", {"m": 1.5, "n": 2})
    assert client.zscore("z", "m") == 1.5
    assert [list(pair) for pair in client.zrange("z", 0, -1, withscores=True)] == [[b"m", 1.5], [b"n", 2.0]]
    client.sadd("s", "p", "q")
    assert set(client.smembers("s")) == {b"p", b"q"}
    with client.pipeline(transaction=True) as pipe:
        assert pipe.set("t", 1).incr("t").get("t").execute() == [True, 2, b"2"]
    with client.pipeline() as pipe:
        pipe.watch("t")
        pipe.multi()
        pipe.incr("t")
        client.set("t", 100)
        try:
            pipe.execute()
            raise AssertionError("a watched key changed and the transaction ran")
        except redis.WatchError:
            pass
    try:
        client.lpush("a", "x")
        raise AssertionError("no error for the wrong type")
    except redis.ResponseError as error:
        assert "wrong kind of value" in str(error), error
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert script(keys=["c"], args=[5]) == 5
    client.script_flush()
    assert script(keys=["c"], args=[5]) == 10
    identifier = client.xadd("stream", {"f": "v"})
    assert client.xrange("stream")[0][0] == identifier
    for n in range(200):
        client.set(f"scan:{n}", n)
    assert len(set(client.scan_iter("scan:*"))) == 200

    listener = client.pubsub()
    listener.subscribe("news")
    assert listener.get_message(timeout=20)["type"] == "subscribe"
    client.publish("news", "hello")
    assert listener.get_message(timeout=20)["data"] == b"hello"
    listener.close()

    popped = []
    waiting = threading.Thread(target=lambda: popped.append(redis.Redis(port=port, **options).blpop("waited", 20)))
    waiting.start()
    while client.info("clients")["blocked_clients"] < 1:
        pass
    client.rpush("waited", "here")
    waiting.join()
    assert [bytes(part) for part in popped[0]] == [b"waited", b"here"], popped
    client.close()
print("done")
