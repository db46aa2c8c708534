//! Places: positions, distances, letters and searches.

use crate::harness::both;

const SICILY: &str = "GEOADD s 13.361389 38.115556 Palermo 15.087269 37.502669 Catania \
                      13.583333 37.316667 Agrigento 12.758489 38.788135 edge1 17.241510 38.788135 edge2";

#[test]
fn places_come_back_with_the_same_digits() {
    both(|d| {
        d.same(SICILY);
        d.same(SICILY);
        d.same("GEOADD s NX 1 1 Palermo 2 2 new");
        d.same("GEOADD s XX CH 3.5 3.25 new 4 4 newer");
        d.same("GEOADD s NX XX 1 1 x");
        d.same("GEOADD s 1 1 x 2");
        d.same("GEOADD s 181 1 x");
        d.same("GEOADD s 1 86 x");
        d.same("GEOADD s a 1 x");
        d.same("GEOADD s inf 1 x");
        d.same("GEOADD s 180 85.05112878 corner -180 -85.05112878 other 0 0 null");
        d.same("ZRANGE s 0 -1 WITHSCORES");
        d.same("GEOPOS s Palermo none Catania corner other null new");
        d.same("GEOPOS s");
        d.same("GEOPOS none a b");
        d.same("GEOHASH s Palermo Catania none corner other null");
        d.same("GEOHASH none a");
        d.same("GEODIST s Palermo Catania");
        for unit in ["m", "km", "FT", "mi", "x"] {
            d.same(&format!("GEODIST s Palermo Catania {unit}"));
        }
        d.same("GEODIST s Palermo Palermo");
        d.same("GEODIST s Palermo none");
        d.same("GEODIST none a b");
        d.same("GEODIST s corner other km extra");
        d.same("ZADD odd -5 a 1e20 b inf c 4503599627370495.5 d");
        d.same("GEOPOS odd a b c d");
        d.same("GEOHASH odd a b c d");
        d.same("GEODIST odd a d");
        d.same("SET text x");
        for line in
            ["GEOPOS text a", "GEOADD text 1 1 x", "GEOSEARCH text FROMLONLAT 1 1 BYRADIUS 1 m"]
        {
            d.same(line);
        }
    });
}

#[test]
fn searches_find_the_same_in_the_same_order() {
    both(|d| {
        d.same(SICILY);
        for line in [
            "GEORADIUS s 15 37 200 km",
            "GEORADIUS s 15 37 200 km WITHDIST WITHCOORD WITHHASH ASC",
            "GEORADIUS s 15 37 200 km WITHHASH DESC COUNT 1",
            "GEORADIUS s 15 37 200 km COUNT 2 ANY",
            "GEORADIUS s 15 37 200 km ANY",
            "GEORADIUS s 15 37 200 km COUNT 0",
            "GEORADIUS s 15 37 200 km COUNT x",
            "GEORADIUS s 15 37 -1 km",
            "GEORADIUS s 15 37 x km",
            "GEORADIUS s 15 37 1 parsec",
            "GEORADIUS s 15 97 1 km",
            "GEORADIUS s 15 37 200 km FROMMEMBER Palermo",
            "GEORADIUS_RO s 15 37 200 km ASC",
            "GEORADIUS_RO s 15 37 200 km STORE x",
            "GEORADIUSBYMEMBER s Agrigento 100 km",
            "GEORADIUSBYMEMBER s none 100 km",
            "GEORADIUSBYMEMBER none none 100 km",
            "GEORADIUSBYMEMBER_RO s Agrigento 100 km WITHDIST",
            "GEOSEARCH s FROMMEMBER Palermo BYRADIUS 100 mi ASC WITHDIST",
            "GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km ASC WITHCOORD WITHDIST",
            "GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 400 km DESC COUNT 3",
            "GEOSEARCH s FROMLONLAT 15 37 BYBOX 400 -4 km",
            "GEOSEARCH s FROMLONLAT 15 37 BYBOX x 4 km",
            "GEOSEARCH s FROMLONLAT 15 37 BYBOX 4 x km",
            "GEOSEARCH s BYBOX 400 400 km ASC COUNT 3",
            "GEOSEARCH s FROMLONLAT 15 37 ASC COUNT 3",
            "geosearch s FROMLONLAT 15 37 FROMMEMBER Palermo BYRADIUS 1 km",
            "GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 1 km BYBOX 1 1 km",
            "GEOSEARCH s FROMLONLAT 15 37 BYRADIUS 10000 km STOREDIST",
            "GEOSEARCH none FROMMEMBER x BYRADIUS 1 km",
            "GEOSEARCH s FROMMEMBER x BYRADIUS 1 km",
            "GEOSEARCHSTORE to s FROMLONLAT 15 37 BYBOX 400 400 km ASC COUNT 2",
            "ZRANGE to 0 -1 WITHSCORES",
            "OBJECT ENCODING to",
            "GEOSEARCHSTORE to s FROMLONLAT 15 37 BYBOX 400 400 km STOREDIST",
            "ZRANGE to 0 -1 WITHSCORES",
            "GEOSEARCHSTORE to s FROMLONLAT 15 37 BYBOX 4 4 km WITHDIST",
            "GEORADIUS s 15 37 200 km STORE to",
            "ZRANGE to 0 -1 WITHSCORES",
            "GEORADIUS s 15 37 200 mi STOREDIST to",
            "ZRANGE to 0 -1 WITHSCORES",
            "GEORADIUS s 15 37 200 mi STORE to WITHDIST",
            "GEORADIUS none 15 37 200 km STORE to",
            "EXISTS to",
            "GEOSEARCHSTORE to s FROMLONLAT -150 37 BYRADIUS 1 m",
            "EXISTS to",
        ] {
            d.same(line);
        }
        d.same("COMMAND GETKEYS GEORADIUS s 1 1 1 m STORE a STOREDIST b");
    });
}

#[test]
fn searches_everywhere_find_the_same() {
    both(|d| {
        let mut rng = fastrand::Rng::with_seed(7);
        for n in 0..400 {
            let (longitude, latitude) = (rng.f64() * 360.0 - 180.0, rng.f64() * 170.0 - 85.0);
            d.same(&format!("GEOADD w {longitude} {latitude} p{n}"));
        }
        for _ in 0..150 {
            let (longitude, latitude) = (rng.f64() * 360.0 - 180.0, rng.f64() * 170.0 - 85.0);
            let size = 10f64.powf(rng.f64() * 4.5);
            let other = 10f64.powf(rng.f64() * 4.5);
            d.same(&format!(
                "GEOSEARCH w FROMLONLAT {longitude} {latitude} BYRADIUS {size} km WITHDIST"
            ));
            d.same(&format!(
                "GEOSEARCH w FROMLONLAT {longitude} {latitude} BYBOX {size} {other} km WITHCOORD"
            ));
        }
    });
}
