//! Places as numbers: the earth cut into cells by halving longitude and latitude in turn.
//!
//! A cell of step n is a number of 2n bits, longitude first; a place is kept as its cell of step
//! 26, 52 bits, which a score holds exactly. Arithmetic is in the order that Redis has it, so that
//! the last digit of a position or a distance is the same.

/// Longitudes and latitudes that can be kept: the square of the web Mercator projection.
const LONGITUDE: (f64, f64) = (-180.0, 180.0);
const LATITUDE: (f64, f64) = (-85.051_128_78, 85.051_128_78);
/// Halvings of a place as it is kept.
const STEP_MAX: u32 = 26;
/// Mean radius of the earth in meters.
const EARTH_RADIUS: f64 = 6_372_797.560_856;
/// Half the side of the square, in meters.
const MERCATOR_MAX: f64 = 20_037_726.37;

/// A place on earth, in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GeoPoint {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

impl GeoPoint {
    /// The place, if it can be kept.
    pub(super) fn new(longitude: f64, latitude: f64) -> Option<GeoPoint> {
        let inside = |(min, max): (f64, f64), n: f64| n >= min && n <= max;
        (inside(LONGITUDE, longitude) && inside(LATITUDE, latitude))
            .then_some(GeoPoint { longitude, latitude })
    }

    /// The place that a score stands for.
    pub(super) fn of_score(score: f64) -> GeoPoint {
        let area = Cell { bits: bits_of(score), step: STEP_MAX }.area();
        let middle = |(min, max): (f64, f64), (least, most): (f64, f64)| {
            ((min + max) / 2.0).min(most).max(least)
        };
        GeoPoint {
            longitude: middle(area.longitude, LONGITUDE),
            latitude: middle(area.latitude, LATITUDE),
        }
    }

    /// The number it is kept as.
    pub(super) fn to_score(self) -> u64 {
        Cell::around(self, STEP_MAX, LATITUDE).bits
    }

    /// The eleven letters that others know it by. They cut latitudes from pole to pole, and the
    /// last letter has no bits left.
    pub(super) fn to_letters(self) -> Vec<u8> {
        const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Cell::around(self, STEP_MAX, (-90.0, 90.0)).bits;
        let letter = |n: u32| LETTERS.get((bits >> (47 - 5 * n) & 31) as usize).copied();
        (0..10).filter_map(letter).chain([b'0']).collect()
    }

    /// Meters to another place, along a great circle.
    pub(super) fn distance(self, other: GeoPoint) -> f64 {
        let (longitude, other_longitude) = (radians(self.longitude), radians(other.longitude));
        let v = ((other_longitude - longitude) / 2.0).sin();
        if v == 0.0 {
            return latitude_distance(self.latitude, other.latitude);
        }
        let (latitude, other_latitude) = (radians(self.latitude), radians(other.latitude));
        let u = ((other_latitude - latitude) / 2.0).sin();
        let a = u * u + latitude.cos() * other_latitude.cos() * v * v;
        2.0 * EARTH_RADIUS * a.sqrt().asin()
    }
}

fn latitude_distance(from: f64, to: f64) -> f64 {
    EARTH_RADIUS * (radians(to) - radians(from)).abs()
}

/// A degree in radians.
const DEGREE: f64 = std::f64::consts::PI / 180.0;

fn radians(degrees: f64) -> f64 {
    degrees * DEGREE
}

fn degrees(radians: f64) -> f64 {
    radians / DEGREE
}

/// A score as an unsigned number: what does not fit wraps as the hardware does it.
fn bits_of(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    match score {
        score if score < HALF => score as i64 as u64,
        score if score < 2.0 * HALF => score as u64,
        _ => 0,
    }
}

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    bits: u64,
    step: u32,
}

struct Area {
    longitude: (f64, f64),
    latitude: (f64, f64),
}

/// Every second bit from the lowest on.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Puts a zero between all bits.
fn spread(n: u32) -> u64 {
    let mut n = u64::from(n);
    n = (n | n << 16) & 0x0000_ffff_0000_ffff;
    n = (n | n << 8) & 0x00ff_00ff_00ff_00ff;
    n = (n | n << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    n = (n | n << 2) & 0x3333_3333_3333_3333;
    (n | n << 1) & EVEN
}

/// Every second bit, from the lowest on.
fn gather(n: u64) -> u32 {
    let mut n = n & EVEN;
    n = (n | n >> 1) & 0x3333_3333_3333_3333;
    n = (n | n >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    n = (n | n >> 4) & 0x00ff_00ff_00ff_00ff;
    n = (n | n >> 8) & 0x0000_ffff_0000_ffff;
    (n | n >> 16) as u32
}

impl Cell {
    fn around(place: GeoPoint, step: u32, latitudes: (f64, f64)) -> Cell {
        let share = |n: f64, (min, max): (f64, f64)| {
            ((n - min) / (max - min) * (1u64 << step) as f64) as u64 as u32
        };
        let latitude = share(place.latitude, latitudes);
        let longitude = share(place.longitude, LONGITUDE);
        Cell { bits: spread(latitude) | spread(longitude) << 1, step }
    }

    fn area(self) -> Area {
        let span = |n: u32, (min, max): (f64, f64)| {
            let (scale, cells) = (max - min, (1u64 << self.step) as f64);
            let border = |n: u32| min + f64::from(n) / cells * scale;
            (border(n), border(n.wrapping_add(1)))
        };
        Area {
            longitude: span(gather(self.bits >> 1), LONGITUDE),
            latitude: span(gather(self.bits), LATITUDE),
        }
    }

    /// The cell so many further east and north; past the end it begins again. An axis along which
    /// it does not move keeps the bit too many that the easternmost meridian has.
    fn beside(self, east: i32, north: i32) -> Cell {
        let shift = |n: u32, by: i32| match by {
            0 => n,
            by => n.wrapping_add_signed(by) & ((1 << self.step) - 1),
        };
        let x = shift(gather(self.bits >> 1), east);
        let y = shift(gather(self.bits), north);
        Cell { bits: spread(y) | spread(x) << 1, step: self.step }
    }

    /// Scores of the places inside: from the first on, below the second.
    pub(super) fn scores(self) -> (f64, f64) {
        let shift = 52 - 2 * self.step;
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }
}

/// The area of a search around its centre.
#[derive(Debug, Clone, Copy)]
pub(super) enum GeoShape {
    /// A circle with this radius in meters.
    Circle(f64),
    /// A rectangle with these sides in meters.
    Box { width: f64, height: f64 },
}

impl GeoShape {
    /// The distance from the middle to a place, if that is inside.
    pub(super) fn reach(self, middle: GeoPoint, place: GeoPoint) -> Option<f64> {
        match self {
            GeoShape::Circle(radius) => Some(middle.distance(place)).filter(|d| *d <= radius),
            GeoShape::Box { width, height } => {
                if latitude_distance(place.latitude, middle.latitude) > height / 2.0 {
                    return None;
                }
                let across = GeoPoint { longitude: middle.longitude, latitude: place.latitude };
                (place.distance(across) <= width / 2.0).then(|| middle.distance(place))
            }
        }
    }

    /// Cells that cover it, in the order in which they are searched: the one in the middle and
    /// those around it that are needed. Neighbours that are the same cell come once.
    pub(super) fn cells(self, middle: GeoPoint) -> Vec<Cell> {
        let (half_width, half_height, radius) = match self {
            GeoShape::Circle(radius) => (radius, radius, radius),
            GeoShape::Box { width, height } => {
                let (w, h) = (width / 2.0, height / 2.0);
                (w, h, (w * w + h * h).sqrt())
            }
        };
        let up = degrees(half_height / EARTH_RADIUS);
        let aside = |latitude: f64| degrees(half_width / EARTH_RADIUS / radians(latitude).cos());
        let widest =
            if middle.latitude < 0.0 { middle.latitude - up } else { middle.latitude + up };
        let (west, east) = (middle.longitude - aside(widest), middle.longitude + aside(widest));
        let (south, north) = (middle.latitude - up, middle.latitude + up);

        let mut step = step_for(radius, middle.latitude);
        let mut cell = Cell::around(middle, step, LATITUDE);
        let too_small = cell.beside(0, 1).area().latitude.1 < north
            || cell.beside(0, -1).area().latitude.0 > south
            || cell.beside(1, 0).area().longitude.1 < east
            || cell.beside(-1, 0).area().longitude.0 > west;
        if step > 1 && too_small {
            step -= 1;
            cell = Cell::around(middle, step, LATITUDE);
        }
        let area = cell.area();
        let needed = |x: i32, y: i32| {
            step < 2
                || !((y < 0 && area.latitude.0 < south)
                    || (y > 0 && area.latitude.1 > north)
                    || (x < 0 && area.longitude.0 < west)
                    || (x > 0 && area.longitude.1 > east))
        };
        const AROUND: [(i32, i32); 8] =
            [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut cells = vec![cell];
        for (x, y) in AROUND {
            let next = cell.beside(x, y);
            let repeated = cells.len() > 1 && cells.last() == Some(&next);
            if needed(x, y) && !repeated {
                cells.push(next);
            }
        }
        cells
    }
}

/// The step at which nine cells cover a circle.
fn step_for(radius: f64, latitude: f64) -> u32 {
    if radius == 0.0 {
        return STEP_MAX;
    }
    let (mut step, mut range) = (1i32, radius);
    while range < MERCATOR_MAX {
        range *= 2.0;
        step += 1;
    }
    step -= 2;
    // Meridians come together towards the poles.
    step -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    step.clamp(1, STEP_MAX as i32) as u32
}
