//! A load client that costs next to nothing: plain sends (310) or batches (320) over sockets, a window of them under way
//! on each connection. Every answer is looked at: only SUCCESS counts, "busy" (code 2) is sent again, all else ends it.
//!
//!     load ADDRESS TOPIC QUEUES CONNECTIONS WINDOW BYTES BATCH WARM_S SECONDS
//!
//! Prints GO when it is warm, and DONE with key=value pairs behind it: messages that were acknowledged, seconds, busy
//! answers, and percentiles of the time from a send to its answer in microseconds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const WARM: u8 = 0;
const MEASURE: u8 = 1;
const END: u8 = 2;
const FIRST_OPAQUE: u64 = 100_000_000;
const OPAQUE_RANGE: u64 = 900_000_000;
const READ_BYTES: usize = 1 << 16;
const BUSY: u64 = 2;

struct Plan {
    address: String,
    topic: String,
    queues: usize,
    window: usize,
    bytes: usize,
    batch: usize,
}

/// One frame whose unique key and opaque are written anew for each send.
struct Frame {
    bytes: Vec<u8>,
    key_at: usize,
    opaque_at: usize,
}

impl Frame {
    fn new(plan: &Plan, queue: usize) -> Frame {
        let code = if plan.batch > 1 { 320 } else { 310 };
        let is_batch = plan.batch > 1;
        let header = format!(
            concat!(
                "{{\"code\":{},\"extFields\":{{\"a\":\"load\",\"b\":\"{}\",\"c\":\"TBW102\",\"d\":\"{}\",\"e\":\"{}\",",
                "\"f\":\"0\",\"g\":\"1\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u0001{}\\u0002WAIT\\u0001true\\u0002\",",
                "\"j\":\"0\",\"k\":\"false\",\"m\":\"{}\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{},",
                "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":477}}"
            ),
            code, plan.topic, plan.queues, queue, KEY, is_batch, FIRST_OPAQUE
        );
        let body = body(plan);
        let mut bytes = Vec::new();
        bytes.extend(((4 + header.len() + body.len()) as u32).to_be_bytes());
        bytes.extend((header.len() as u32).to_be_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        let key_at = find(&bytes, KEY.as_bytes()).expect("the key is there") + KEY.len() - 8;
        let opaque_at = find(&bytes, b"\"opaque\":").expect("the opaque is there") + 9;
        Frame { bytes, key_at, opaque_at }
    }

    fn number(&mut self, number: u64) {
        let key = format!("{:08X}", number as u32);
        self.bytes[self.key_at..self.key_at + 8].copy_from_slice(key.as_bytes());
        let opaque = format!("{}", FIRST_OPAQUE + number % OPAQUE_RANGE);
        self.bytes[self.opaque_at..self.opaque_at + 9].copy_from_slice(opaque.as_bytes());
    }
}

const KEY: &str = "7F00000100002A139A55000000000000";

/// A message's bytes, or a batch's: those of each message with its properties.
fn body(plan: &Plan) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut content = Vec::with_capacity(plan.bytes);
    while content.len() < plan.bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend(state.to_be_bytes());
    }
    content.truncate(plan.bytes);
    if plan.batch <= 1 {
        return content;
    }
    let mut all = Vec::new();
    for number in 0..plan.batch {
        let key = format!("{:024X}{:08X}", 0x7F00_0001u32, number);
        let properties = format!("UNIQ_KEY\u{1}{}\u{2}WAIT\u{1}true\u{2}", key);
        all.extend(((22 + content.len() + properties.len()) as u32).to_be_bytes());
        all.extend([0; 8]); // magic, body CRC
        all.extend([0; 4]); // flag
        all.extend((content.len() as u32).to_be_bytes());
        all.extend(&content);
        all.extend((properties.len() as u16).to_be_bytes());
        all.extend(properties.as_bytes());
    }
    all
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// The number behind `name` in a JSON header.
fn number_of(header: &[u8], name: &[u8]) -> Option<u64> {
    let at = find(header, name)? + name.len();
    let digits = header[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |value, byte| value * 10 + u64::from(byte - b'0')))
}

#[derive(Default)]
struct Found {
    count: u64,
    busy: u64,
    times_us: Vec<u32>,
}

fn run(plan: &Plan, queue: usize, phase: &AtomicU8) -> std::io::Result<Found> {
    let mut socket = TcpStream::connect(&plan.address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut frame = Frame::new(plan, queue);
    let slots = plan.window.next_power_of_two().max(64) * 1024;
    let mut sent_at = vec![Instant::now(); slots];
    let mut next = 0u64;
    let mut out = Vec::new();
    let mut found = Found::default();
    let mut waiting = vec![0u8; READ_BYTES * 2];
    let (mut have, mut due) = (0, plan.window);
    loop {
        out.clear();
        let now = Instant::now();
        for _ in 0..due {
            frame.number(next);
            sent_at[next as usize % slots] = now;
            next += 1;
            out.extend_from_slice(&frame.bytes);
        }
        socket.write_all(&out)?;
        if phase.load(Ordering::Relaxed) == END {
            return Ok(found);
        }
        if waiting.len() < have + READ_BYTES {
            waiting.resize(have + READ_BYTES, 0);
        }
        let size = socket.read(&mut waiting[have..])?;
        if size == 0 {
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the broker closed the connection"));
        }
        have += size;
        let now = Instant::now();
        let is_measured = phase.load(Ordering::Relaxed) == MEASURE;
        let mut at = 0;
        due = 0;
        while have - at >= 8 {
            let size = u32::from_be_bytes(waiting[at..at + 4].try_into().expect("four bytes")) as usize;
            if at + 4 + size > have {
                break;
            }
            let answer = &waiting[at + 8..at + 4 + size];
            match number_of(answer, b"\"code\":") {
                Some(0) if is_measured => {
                    let opaque = number_of(answer, b"\"opaque\":").unwrap_or(FIRST_OPAQUE) - FIRST_OPAQUE;
                    found.count += plan.batch as u64;
                    found.times_us.push(now.duration_since(sent_at[opaque as usize % slots]).as_micros() as u32);
                }
                Some(0) => {}
                Some(BUSY) => found.busy += u64::from(is_measured),
                _ => {
                    let text = String::from_utf8_lossy(answer).into_owned();
                    return Err(std::io::Error::new(std::io::ErrorKind::Other, format!("refused: {text}")));
                }
            }
            at += 4 + size;
            due += 1;
        }
        waiting.copy_within(at..have, 0);
        have -= at;
    }
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| given[place].parse::<usize>().expect("a number");
    if given.len() != 9 {
        eprintln!("usage: load ADDRESS TOPIC QUEUES CONNECTIONS WINDOW BYTES BATCH WARM_S SECONDS");
        std::process::exit(2);
    }
    let plan = Arc::new(Plan {
        address: given[0].clone(),
        topic: given[1].clone(),
        queues: number(2),
        window: number(4),
        bytes: number(5),
        batch: number(6).max(1),
    });
    let phase = Arc::new(AtomicU8::new(WARM));
    let mut threads = Vec::new();
    for connection in 0..number(3) {
        let (plan, phase) = (plan.clone(), phase.clone());
        threads.push(thread::spawn(move || match run(&plan, connection % plan.queues, &phase) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("FAILED {error}");
                std::process::exit(1);
            }
        }));
    }
    thread::sleep(Duration::from_secs(number(7) as u64));
    println!("GO");
    let began = Instant::now();
    phase.store(MEASURE, Ordering::Relaxed);
    thread::sleep(Duration::from_secs(number(8) as u64));
    let seconds = began.elapsed().as_secs_f64();
    phase.store(END, Ordering::Relaxed);
    let mut all = Found::default();
    for thread in threads {
        let found = thread.join().expect("a thread ends");
        all.count += found.count;
        all.busy += found.busy;
        all.times_us.extend(found.times_us);
    }
    all.times_us.sort_unstable();
    let part = |share: f64| {
        let last = all.times_us.len().saturating_sub(1);
        all.times_us.get((all.times_us.len() as f64 * share) as usize).or(all.times_us.get(last)).copied().unwrap_or(0)
    };
    println!(
        "DONE count={} seconds={seconds:.3} busy={} p50={} p99={} max={}",
        all.count,
        all.busy,
        part(0.5),
        part(0.99),
        part(1.0)
    );
}
