//! What the tests in Python (`tests/kernel/test_native.py`) cannot see: memory that is too small, and numbers at their
//! ends.

#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

use crate::columns::{self, bytes_of, decode, walk, Columns, Texts, Wanted, KEY_LIST, TAG, TOPIC};
use crate::header::{json_send, rocketmq_send};
use crate::input::{number, Class, Cursor, Span};
use crate::keys::NEW_ENTRY_BYTES;
use crate::output::{hexadecimal, Decimal, Writer};
use crate::properties::{tags_code, text as value, unescape, Values};
use crate::rules::Rules;
use crate::sends::{build, parse, Ground, Made, MadeSends, Part, Queue, Row, UNIT_BYTES};

const HEADER: &[u8] = concat!(
    r#"{"code":310,"extFields":{"a":"P","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1795227462186","h":"0","#,
    r#""i":"UNIQ_KEY\u0001K\u0002TAGS\u0001Aa\u0002","j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA","#,
    r#""opaque":7,"serializeTypeCurrentRPC":"JSON","version":493}"#
)
.as_bytes();
const BODY: &[u8] = b"body";

fn frame() -> Vec<u8> {
    let header_bytes = HEADER.len() as u32;
    let mut data = (4 + header_bytes + BODY.len() as u32).to_be_bytes().to_vec();
    data.extend(header_bytes.to_be_bytes());
    data.extend(HEADER);
    data.extend(BODY);
    data
}

fn text(into: &mut Vec<u8>, text: &[u8]) {
    into.extend((text.len() as u32).to_be_bytes());
    into.extend(text);
}

fn rules() -> Vec<u8> {
    let mut data = Vec::new();
    for limit in [1i64 << 20, 1 << 20, 32767] {
        data.extend(limit.to_be_bytes());
    }
    data.extend(10911i32.to_be_bytes());
    text(&mut data, b"CLUSTER\x01c\x02");
    text(&mut data, &[127, 0, 0, 1]);
    text(&mut data, b"HOST");
    for _ in 0..14 {
        text(&mut data, b"-");
    }
    text(&mut data, b"DELAY");
    data
}

struct Outcome {
    count: Option<usize>,
    keyed: Vec<u8>,
    records: Vec<u8>,
    answers: Vec<u8>,
    units: Vec<u8>,
}

fn part(start: usize, end: usize) -> Part {
    let mut born_address = [0; 16];
    born_address[..4].copy_from_slice(&[127, 0, 0, 1]);
    Part { start, end, max_count: 4, born_port: 9, born_bytes: 4, born_address, ..Part::default() }
}

/// Both steps with `byte_limit` bytes of memory.
fn made_of(data: &[u8], byte_limit: usize, room_bytes: i64) -> Outcome {
    made_of_parts(data, &mut [part(0, data.len())], byte_limit, room_bytes)
}

fn made_of_parts(data: &[u8], parts: &mut [Part], byte_limit: usize, room_bytes: i64) -> Outcome {
    let encoded = rules();
    let rules = Rules::read(&encoded).unwrap();
    let (mut rows, mut queues) = ([Row::default(); 4], [Queue::default(); 4]);
    let parsed = parse(data, parts, &rules, &mut rows, &mut queues);
    for queue in &mut queues[..parsed.queue_count] {
        (queue.is_known, queue.next_offset, queue.field_end) = (1, 41, 2);
    }
    let (mut records, mut answers, mut entries) = (vec![0; byte_limit], vec![0; byte_limit], vec![0; byte_limit]);
    let (mut ends, mut places, mut tags) = ([0; 4], [0; 4], [0; 4]);
    let mut of_sends = [[0; 4]; 5];
    let [tail_starts, tail_ends, send_ends, send_places, counts] = &mut of_sends;
    let mut units = [0; 4 * UNIT_BYTES];
    let mut made = Made {
        records: Writer::new(&mut records),
        answers: Writer::new(&mut answers),
        keyed: Some(Writer::new(&mut entries)),
        sends: MadeSends { tail_starts, tail_ends, ends: send_ends, places: send_places, counts },
        ends: &mut ends,
        places: &mut places,
        tags: &mut tags,
        units: &mut units,
    };
    let ground = Ground { phy_offset: 100, room_end: 100 + room_bytes, stored_ms: 5, fields: b"\x01T" };
    let rows = &rows[..parsed.row_count];
    let built = build(data, parts, &rules, &ground, rows, &mut queues[..parsed.queue_count], &mut made);
    let (records_bytes, answers_bytes) = (made.records.size(), made.answers.size());
    let keyed_bytes = made.keyed.as_ref().map_or(0, Writer::size);
    let count = built.ok().map(|built| built.record_count);
    let unit_bytes = count.unwrap_or(0) * UNIT_BYTES;
    Outcome {
        count,
        keyed: entries[..keyed_bytes].to_vec(),
        records: records[..records_bytes].to_vec(),
        answers: answers[..answers_bytes].to_vec(),
        units: units[..unit_bytes].to_vec(),
    }
}

#[test]
fn a_record_and_its_entry() {
    let made = made_of(&frame(), 1000, 1000);
    assert_eq!(made.count, Some(1));
    let size = made.records.len() as u32;
    assert_eq!(made.records[..4], size.to_be_bytes());
    assert!(made.records.ends_with(b"UNIQ_KEY\x01K\x02TAGS\x01Aa\x02CLUSTER\x01c\x02"));
    assert_eq!(made.units[..8], 100u64.to_be_bytes());
    assert_eq!(made.units[8..12], size.to_be_bytes());
    assert_eq!(made.units[12..], (31 * u64::from(b'A') + u64::from(b'a')).to_be_bytes());
    assert_eq!(made.answers[8..], *b"-HOST0000000000000064-1-41-K-7-");
    assert_eq!(made.keyed.len(), 2 * NEW_ENTRY_BYTES);
    assert_eq!(made.keyed[4..12], 100u64.to_ne_bytes());
    assert_eq!(made.keyed[12..20], 5u64.to_ne_bytes());
}

#[test]
fn memory_that_is_too_small_is_told() {
    let two = [frame(), frame()].concat();
    let needed = made_of(&two, 1000, 1000).records.len();
    for byte_limit in 0..needed {
        assert_eq!(made_of(&two, byte_limit, 1000).count, None, "{}", byte_limit);
    }
    assert_eq!(made_of(&two, needed, 1000).count, Some(2));
}

#[test]
fn each_part_goes_as_far_as_it_is_plain() {
    let mut bad = frame();
    bad[8] = b'?';
    let data = [frame(), bad, frame(), frame()].concat();
    let size = frame().len();
    let mut parts =
        [part(0, 2 * size), part(2 * size, 3 * size - 1), part(3 * size, 4 * size), part(4 * size, 9 * size)];
    let made = made_of_parts(&data, &mut parts, 1000, 1000);
    assert_eq!(made.count, Some(2));
    let found: Vec<_> = parts.iter().map(|part| (part.taken_count, part.taken_end, part.answers_end)).collect();
    let answer = made.answers.len() / 2;
    let ends = [size, 2 * size, 4 * size, 4 * size];
    assert_eq!(found, [(1, ends[0], answer), (0, ends[1], answer), (1, ends[2], 2 * answer), (0, ends[3], 2 * answer)]);
}

#[test]
fn what_does_not_fit_the_file_stays() {
    let size = made_of(&frame(), 1000, 1000).records.len() as i64;
    let two = [frame(), frame()].concat();
    for (room_bytes, count) in [(0, 0), (size - 1, 0), (size, 1), (2 * size - 1, 1), (2 * size, 2), (-1, 0)] {
        let made = made_of(&two, 1000, room_bytes);
        assert_eq!(made.count, Some(count));
        assert_eq!(made.records.len() as i64, size * count as i64);
    }
}

#[test]
fn no_prefix_and_no_changed_byte_is_a_panic() {
    let whole = frame();
    for end in 0..whole.len() {
        assert_eq!(made_of(&whole[..end], 1000, 1000).count, Some(0));
    }
    for at in 0..whole.len() {
        for byte in 0..=255 {
            let mut data = whole.clone();
            data[at] = byte;
            assert!(made_of(&data, 1000, 1000).count.is_some());
            let _ = json_send(&data, at);
            let _ = rocketmq_send(&data, at);
        }
    }
}

#[test]
fn rules_that_are_none() {
    let whole = rules();
    for end in 0..whole.len() {
        // the special texts at the end may be fewer
        assert!(Rules::read(&whole[..end]).is_none() || end == whole.len() - 9);
    }
}

#[test]
fn numbers() {
    for (text, signed, expected) in [
        ("0", false, Some(0)),
        ("007", false, Some(7)),
        ("-0", true, Some(0)),
        ("-5", true, Some(-5)),
        ("-5", false, None),
        ("", false, None),
        ("-", true, None),
        ("--1", true, None),
        ("+1", true, None),
        ("999999999", false, Some(999_999_999)),
        ("1000000000", false, None),
    ] {
        assert_eq!(number(text.as_bytes(), 9, signed), expected, "{}", text);
    }
    assert_eq!(number(&[b'9'; 18], 18, false), Some(999_999_999_999_999_999));
    assert_eq!(number(&[b'9'; 19], 19, false), None);
    for value in [0, 9, 10, -1, i64::MAX, i64::MIN] {
        assert_eq!(Decimal::new(value).text(), value.to_string().as_bytes());
        assert_eq!(hexadecimal(value).to_vec(), format!("{:016X}", value).into_bytes());
    }
}

#[test]
fn properties() {
    let key = |text: &[u8]| Values::of(text).unique_key.map(|span| text[span.start..span.end].to_vec());
    assert_eq!(key(b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b"), Some(b"b".to_vec()));
    assert_eq!(key(b"xUNIQ_KEY\x01a\x02"), None);
    assert_eq!(key(b"UNIQ_KEY\x01"), Some(Vec::new()));
    assert_eq!(tags_code(b""), 0);
    let tagged = b"TAGS\x01polygenelubricants\x02";
    assert_eq!(tags_code(value(Values::of(tagged).tags, tagged)), i64::from(i32::MIN));
    let mut memory = [0; 16];
    let mut into = Writer::new(&mut memory);
    assert!(unescape(br"a\u0001b\u0002", &mut into).unwrap());
    assert_eq!(into.since(0), b"a\x01b\x02");
    for other in [&br"\"[..], br"\\u0001", br"\u0003", br"\u000", br"\n"] {
        assert!(!unescape(other, &mut into).unwrap());
    }
}

#[test]
fn a_cursor_stays_in_its_bytes() {
    let mut cursor = Cursor::new(b"abc", 9);
    assert_eq!((cursor.literal(b"a"), cursor.word(), cursor.rest()), (None, None, &b""[..]));
    assert_eq!(cursor.take(usize::MAX), None);
    assert_eq!(cursor.run(Class::TEXT), Span { start: 9, end: 9 });
    assert_eq!(Span { start: 3, end: 1 }.of(b"abc"), None);
}

fn log_record(offset: i64, properties: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 88];
    record[4..8].copy_from_slice(&0xDAA3_20A7u32.to_be_bytes());
    record[28..36].copy_from_slice(&offset.to_be_bytes());
    record[84..88].copy_from_slice(&4u32.to_be_bytes());
    record.extend(b"body\x01T");
    record.extend((properties.len() as u16).to_be_bytes());
    record.extend(properties);
    let size = record.len() as u32;
    record[..4].copy_from_slice(&size.to_be_bytes());
    record
}

/// Two records decoded into so many bytes of bodies, topics, keys and tags, and so many keys.
fn decoded(data: &[u8], starts: &[i64], limits: [usize; 5]) -> Option<usize> {
    let [body, topic, keys, tags, key_count] = limits;
    let (mut bodies, mut topics, mut key_bytes, mut tag_bytes) =
        (vec![0; body], vec![0; topic], vec![0; keys], vec![0; tags]);
    let (mut body_offsets, mut topic_offsets, mut tag_offsets, mut list_offsets) = ([9; 3], [9; 3], [9; 3], [9; 3]);
    let (mut key_offsets, mut tag_bits) = (vec![9; key_count + 1], [255]);
    let mut into = Columns {
        body: Texts::new(&mut body_offsets, &mut bodies),
        topic: Texts::new(&mut topic_offsets, &mut topics),
        keys: Texts::new(&mut key_offsets, &mut key_bytes),
        key_offsets: &mut list_offsets,
        tags: Texts::new(&mut tag_offsets, &mut tag_bytes),
        tag_bits: &mut tag_bits,
        tag_count: 0,
        queue_ids: &mut [],
        queue_offsets: &mut [],
        phy_offsets: &mut [],
        born_us: &mut [],
        stored_us: &mut [],
        sys_flags: &mut [],
        flags: &mut [],
    };
    let wanted = Wanted { columns: columns::BODY | TOPIC | KEY_LIST | TAG, refused_flags: 0, verifies_crc: false };
    let count = decode(data, starts, &wanted, &mut into).ok()?;
    if count == starts.len() {
        assert_eq!(into.tag_count, 1);
        assert_eq!(
            (body_offsets, topic_offsets, tag_offsets, list_offsets),
            ([0, 4, 8], [0, 1, 2], [0, 2, 2], [0, 2, 3])
        );
        assert_eq!(
            (key_offsets, key_bytes, tag_bytes, tag_bits),
            (vec![0, 1, 2, 5], b"abkey".to_vec(), b"tt".to_vec(), [1])
        );
    }
    Some(count)
}

#[test]
fn columns_that_have_too_little_memory_are_told() {
    let first = log_record(0, b"KEYS\x01a b\x02TAGS\x01tt");
    let starts = [0, first.len() as i64];
    let data = [first.clone(), log_record(starts[1], b"KEYS\x01key\x02")].concat();
    let mut places = [0; 3];
    let walked = walk(&data, 0, data.len() as i64, 1000, &mut places);
    assert_eq!((walked.count, walked.end, walked.flags, places), (2, data.len() as i64, 0, [0, starts[1], 0]));
    assert_eq!(bytes_of(&data, &[0, starts[1], -1, i64::MAX]), data.len() as i64);
    let needed = [8, 2, 5, 2, 3];
    assert_eq!(decoded(&data, &starts, needed), Some(2));
    for place in 0..needed.len() {
        for limit in 0..needed[place] {
            let mut limits = needed;
            limits[place] = limit;
            assert_eq!(decoded(&data, &starts, limits), None, "{} {}", place, limit);
        }
    }
    for end in 0..data.len() {
        let count = decoded(&data[..end], &starts, needed);
        assert_eq!(count, Some(usize::from(end >= first.len())));
        let found = walk(&data[..end], 0, data.len() as i64, 1000, &mut [0; 3]);
        assert_eq!(found.count, usize::from(end >= first.len()));
    }
    assert_eq!(decoded(&data, &[-1, 0], needed), Some(0));
}
