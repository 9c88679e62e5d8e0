// Record batches of one partition's Fetch answer, as the buffers of Arrow columns.
//
// Plain C11 with a C ABI, loaded by `library.py` and called by `decode.py`, so that one binary for each platform serves
// every Python. Pure: no input or output, nothing allocated, no state kept between calls; all memory is the caller's.
// The format is that of KIP-98 (Kafka: DefaultRecordBatch.java, DefaultRecord.java). Three calls, in this order:
//
//   kgroup_walk     goes over the batches, checks them, leaves out those without rows (control batches, aborted
//                   transactions) and says where the payloads of the others are. The caller decompresses these.
//   kgroup_measure  says how many rows the next Arrow batch takes, and how large each of its buffers must be; none if
//                   a batch has `more` than what is here, which the caller puts behind what is left of it.
//   kgroup_fill     writes these rows into the caller's buffers.
//
// What comes from a broker is not trusted: a length is compared with what is left before anything behind it is read,
// and a buffer's size before it is written to, whatever `kgroup_measure` said. What is not as it should be ends a call
// with a status, and the caller reads on with another client; nothing is repaired or skipped here.

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#endif

#define EXPORTED __attribute__((visibility("default")))

enum { VERSION = 4 };  // of the structures and calls below: `library.py` loads no other
EXPORTED int32_t kgroup_version(void) { return VERSION; }

enum status { GOOD, OLD_FORMAT, BAD_CHECKSUM, MALFORMED, FAR_TIMESTAMP };

typedef struct {           // a batch that has rows, as `kgroup_walk` leaves it
  const uint8_t *payload;  // its records, from `place` on; of a compressed batch, what the caller has decompressed
  int64_t payload_bytes;
  int64_t base_offset;
  int64_t base_timestamp_ms;
  int64_t max_timestamp_ms;
  int32_t last_offset_delta;
  int32_t records;
  int32_t leader_epoch;
  int32_t codec;  // 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
  int32_t log_append_time;
  int32_t more;  // whether what follows `payload` is still to be decompressed
} batch;

typedef struct {
  int64_t producer, first_offset;  // which of the walk's `producers`
} aborted_transaction;

typedef struct {         // where `kgroup_walk` stands; the caller sets it up once and calls until nothing is found
  const uint8_t *bytes;  // of one partition in a Fetch answer
  int64_t size;
  int64_t at;
  int64_t start, end;                  // the offsets that are asked for: [start, end)
  const aborted_transaction *aborted;  // by first offset; none under read_uncommitted
  const int64_t *producers;            // their ids, ascending, each once
  uint8_t *aborted_now;                // for each producer, whether a transaction of it that is listed is not over
  int64_t aborted_count, aborted_begun, producer_count;
  int64_t next_offset;   // past the last batch that was walked over
  int32_t leader_epoch;  // of that batch
  int32_t compressed;    // how many of the batches found are
} walk;

typedef struct {  // the next record to be read; set to {0, 0, 0, -1} for the first
  int32_t batch, record;
  int64_t at;
  int64_t previous_delta;
} place;

typedef struct {  // of an Arrow batch
  int64_t rows, rows_with_headers, headers;
  int64_t key_bytes, keys, value_bytes, values;  // `keys`, `values`: how many are not null
  int64_t header_key_bytes, header_value_bytes, header_values;
} sizes;

typedef struct {  // a column of Arrow's type binary, or string
  int32_t *offsets;
  uint8_t *data;
  uint8_t *validity;  // null if no value is
  int64_t data_bytes;
} binary;

typedef struct {
  int64_t rows, headers;
  binary key, value, header_key, header_value;
  int32_t *partition, *timestamp_type, *header_offsets;
  int64_t *offset, *timestamp_us;
  uint8_t *header_validity;  // header_offsets and header_validity: null if no headers are wanted
} columns;

// ----------------------------------------------------------------------------------------------------------- numbers

static inline uint64_t big_endian(const uint8_t *from, int bytes) {
  uint64_t number = 0;
  for (int i = 0; i < bytes; i++) number = number << 8 | from[i];
  return number;
}

static inline int64_t int64_at(const uint8_t *from) { return (int64_t)big_endian(from, 8); }
static inline int32_t int32_at(const uint8_t *from) { return (int32_t)(uint32_t)big_endian(from, 4); }

typedef struct {
  const uint8_t *at, *end;
} span;

enum { VARINT_BYTES_MAX = 10 };

static inline int64_t of_zigzag(uint64_t bits) { return (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1); }

typedef struct {
  const uint8_t *behind;  // null if the varint is cut off or has more than 64 bits
  int64_t number;
} varint;

__attribute__((noinline)) static varint long_varint(const uint8_t *at, const uint8_t *end) {
  uint64_t bits = 0;
  for (int shift = 0; shift < 64 && at < end; shift += 7) {
    uint8_t byte = *at++;
    bits |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return (varint){shift < 63 || byte < 2 ? at : NULL, of_zigzag(bits)};
  }
  return (varint){NULL, 0};
}

// A zigzag varint; 0 if it is not there. Most have one byte or two, and five are read for each record.
static inline int take_varint(span *from, int64_t *number) {
  const uint8_t *at = from->at;
  if (from->end - at >= 2 && (at[0] < 0x80 || at[1] < 0x80)) {
    int two = at[0] >= 0x80;
    *number = of_zigzag(two ? (uint64_t)(at[0] & 0x7f) | (uint64_t)at[1] << 7 : at[0]);
    from->at = at + 1 + two;
    return 1;
  }
  varint slow = long_varint(at, from->end);
  *number = slow.number;
  if (slow.behind) from->at = slow.behind;
  return slow.behind != NULL;
}

// Bytes behind their length, which is -1 for null; 0 if they are not there.
static inline int take_bytes(span *from, const uint8_t **bytes, int64_t *length) {
  if (!take_varint(from, length) || *length < -1 || *length > from->end - from->at) return 0;
  *bytes = from->at;
  if (*length > 0) from->at += *length;
  return 1;
}

// ---------------------------------------------------------------------------------------------------------- checksum

static uint32_t crc32c_of_nibbles(uint32_t crc, const uint8_t *from, int64_t size) {
  static const uint32_t table[16] = {
      0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
      0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  for (; size > 0; size--) {
    crc ^= *from++;
    crc = crc >> 4 ^ table[crc & 15];
    crc = crc >> 4 ^ table[crc & 15];
  }
  return crc;
}

#if defined(__x86_64__)
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#define CRC32C_8(crc, word) ((uint32_t)__builtin_ia32_crc32di(crc, word))
#define CRC32C_1(crc, byte) __builtin_ia32_crc32qi(crc, byte)
static int has_crc32c(void) {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
}
#elif defined(__aarch64__)
#define CRC32C_TARGET __attribute__((target("+crc")))
#define CRC32C_8(crc, word) __crc32cd(crc, word)
#define CRC32C_1(crc, byte) __crc32cb(crc, byte)
#if defined(__linux__)
extern unsigned long getauxval(unsigned long);
static int has_crc32c(void) { return (getauxval(16) & 1 << 7) != 0; }  // AT_HWCAP, HWCAP_CRC32
#else
static int has_crc32c(void) { return 1; }  // every Mac
#endif
#endif

#if defined(CRC32C_TARGET)
CRC32C_TARGET static uint32_t crc32c_of_words(uint32_t crc, const uint8_t *from, int64_t size) {
  for (; size >= 8; size -= 8, from += 8) {
    uint64_t word;
    __builtin_memcpy(&word, from, 8);
    crc = CRC32C_8(crc, word);
  }
  for (; size > 0; size--) crc = CRC32C_1(crc, *from++);
  return crc;
}
#endif

// For tests, too: `hardware` 0 for the table, whatever the processor has.
EXPORTED uint32_t kgroup_crc32c(const uint8_t *from, int64_t size, int32_t hardware) {
#if defined(CRC32C_TARGET)
  static _Atomic int known;  // to ask the processor takes microseconds in a virtual machine: 1 it has not, 2 it has
  if (!known) known = 1 + has_crc32c();
  if (hardware && known == 2) return ~crc32c_of_words(0xffffffff, from, size);
#endif
  (void)hardware;
  return ~crc32c_of_nibbles(0xffffffff, from, size);
}

// ------------------------------------------------------------------------------------------------------------ the walk

enum { LENGTH_AT = 8, LEADER_EPOCH_AT = 12, MAGIC_AT = 16, CHECKSUM_AT = 17, ATTRIBUTES_AT = 21, LAST_DELTA_AT = 23,
       BASE_TIMESTAMP_AT = 27, MAX_TIMESTAMP_AT = 35, PRODUCER_ID_AT = 43, COUNT_AT = 57, RECORDS_AT = 61 };
enum { CODEC = 7, LOG_APPEND_TIME = 8, TRANSACTIONAL = 16, CONTROL = 32 };  // attributes

// Type of the one record of a control batch (ControlRecordType.java): 0 is the marker of an aborted transaction's end.
static int control_type(const uint8_t *head, int64_t size, int *type) {
  span record = {head + RECORDS_AT, head + size};
  int64_t length, ignored;
  const uint8_t *key;
  if (!take_varint(&record, &length) || length < 1 || length > record.end - record.at) return MALFORMED;
  record = (span){record.at + 1, record.at + length};  // past the record's attributes
  if (!take_varint(&record, &ignored) || !take_varint(&record, &ignored)) return MALFORMED;
  if (!take_bytes(&record, &key, &length) || length < 4) return MALFORMED;
  *type = (int)big_endian(key + 2, 2);
  return GOOD;
}

// Which of `producers` it is; -1 if none.
static int64_t place_of(const walk *w, int64_t producer_id) {
  int64_t low = 0, high = w->producer_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (w->producers[middle] < producer_id) low = middle + 1; else high = middle;
  }
  return low < w->producer_count && w->producers[low] == producer_id ? low : -1;
}

// Whether the batch belongs to an aborted transaction. As Java's CompletedFetch: a producer's transaction is aborted
// from the first offset that the answer lists until its abort marker.
static int is_aborted(walk *w, const uint8_t *head, int64_t size, int64_t last_offset, int *aborted) {
  int64_t producer_id = int64_at(head + PRODUCER_ID_AT), producer = producer_id < 0 ? -1 : place_of(w, producer_id);
  int attributes = (int)big_endian(head + ATTRIBUTES_AT, 2), type = -1;
  *aborted = 0;
  for (; w->aborted_begun < w->aborted_count; w->aborted_begun++) {
    aborted_transaction next = w->aborted[w->aborted_begun];
    if (next.first_offset > last_offset) break;
    w->aborted_now[next.producer] = 1;
  }
  if (producer < 0 || !w->aborted_now[producer]) return GOOD;
  if (attributes & CONTROL) {
    if (attributes & CODEC || control_type(head, size, &type)) return MALFORMED;
    if (type == 0) w->aborted_now[producer] = 0;
  } else {
    *aborted = attributes & TRANSACTIONAL;
  }
  return GOOD;
}

// Finds up to `room` batches with records. What is left of a batch at the end of the answer is left over.
EXPORTED int32_t kgroup_walk(walk *w, batch *found, int32_t room, int32_t *count) {
  *count = w->compressed = 0;
  while (*count < room && w->size - w->at > MAGIC_AT) {
    const uint8_t *head = w->bytes + w->at;
    int64_t size = (int64_t)int32_at(head + LENGTH_AT) + LEADER_EPOCH_AT, base = int64_at(head);
    if (size <= MAGIC_AT) return MALFORMED;
    if (size > w->size - w->at) break;
    if (head[MAGIC_AT] != 2) return head[MAGIC_AT] < 2 ? OLD_FORMAT : MALFORMED;
    if (size < RECORDS_AT) return MALFORMED;
    if (base >= w->end) {  // a gap up to the end counts as read
      w->next_offset = w->end;
      break;
    }
    uint32_t checksum = kgroup_crc32c(head + ATTRIBUTES_AT, size - ATTRIBUTES_AT, 1);
    if (checksum != (uint32_t)int32_at(head + CHECKSUM_AT)) return BAD_CHECKSUM;
    int attributes = (int)big_endian(head + ATTRIBUTES_AT, 2), aborted;
    int32_t last_delta = int32_at(head + LAST_DELTA_AT), records = int32_at(head + COUNT_AT);
    if (base < w->next_offset || last_delta < 0 || base > INT64_MAX - 1 - last_delta || records < 0) return MALFORMED;
    if (is_aborted(w, head, size, base + last_delta, &aborted)) return MALFORMED;
    if (records && base + last_delta >= w->start && !aborted && !(attributes & CONTROL)) {
      found[(*count)++] = (batch){
          .payload = head + RECORDS_AT, .payload_bytes = size - RECORDS_AT, .base_offset = base,
          .base_timestamp_ms = int64_at(head + BASE_TIMESTAMP_AT),
          .max_timestamp_ms = int64_at(head + MAX_TIMESTAMP_AT), .last_offset_delta = last_delta, .records = records,
          .leader_epoch = int32_at(head + LEADER_EPOCH_AT), .codec = attributes & CODEC,
          .log_append_time = (attributes & LOG_APPEND_TIME) != 0};
      w->compressed += (attributes & CODEC) != 0;
    }
    w->next_offset = base + last_delta + 1;
    w->leader_epoch = int32_at(head + LEADER_EPOCH_AT);
    w->at += size;
  }
  return GOOD;
}

// --------------------------------------------------------------------------------------------------------- the records

typedef struct {
  int64_t offset, timestamp_us;
  const uint8_t *key, *value;
  int64_t key_length, value_length;  // -1: null
  span headers;
} record;

typedef struct {
  const uint8_t *key, *value;
  int64_t key_length, value_length;
} header;

// Microseconds, as Spark has them. The milliseconds of producers that sent nanoseconds do not fit.
static inline int timestamp(const batch *b, int64_t delta_ms, int64_t *us) {
  int64_t ms = b->max_timestamp_ms;
  *us = 0;
  if (!b->log_append_time && __builtin_add_overflow(b->base_timestamp_ms, delta_ms, &ms)) return FAR_TIMESTAMP;
  return __builtin_mul_overflow(ms, 1000, us) ? FAR_TIMESTAMP : GOOD;
}

enum { NO_MORE = -1, CUT = -2 };

// The length of the next record, and all of it; CUT if some of it is still to be decompressed.
static inline int take_length(const batch *b, span *rest, int64_t *length) {
  if (!take_varint(rest, length)) return b->more && rest->end - rest->at < VARINT_BYTES_MAX ? CUT : MALFORMED;
  if (*length < 1 || *length > INT32_MAX) return MALFORMED;
  return *length <= rest->end - rest->at ? GOOD : b->more ? CUT : MALFORMED;
}

// The next record with an offset in [start, end); NO_MORE after the last one, CUT where more is needed of a batch. Within a batch offsets rise
// (MemoryRecordsBuilder.java), and its records take up all of it. Inlined, which clang does not do by itself, a record
// costs half.
__attribute__((always_inline)) static inline int next_row(const batch *batches, int32_t count, place *p, int64_t start,
                                                          int64_t end, record *r) {
  for (; p->batch < count; *p = (place){p->batch + 1, 0, 0, -1}) {
    const batch *b = &batches[p->batch];
    while (p->record < b->records) {
      span rest = {b->payload + p->at, b->payload + b->payload_bytes};
      int64_t length, delta_ms, delta;
      int status = take_length(b, &rest, &length);
      if (status) return status;
      span body = {rest.at + 1, rest.at + length};  // past the record's attributes, of which none is defined
      if (!take_varint(&body, &delta_ms) || !take_varint(&body, &delta)) return MALFORMED;
      if (!take_bytes(&body, &r->key, &r->key_length)) return MALFORMED;
      if (!take_bytes(&body, &r->value, &r->value_length)) return MALFORMED;
      if (delta <= p->previous_delta || delta > b->last_offset_delta) return MALFORMED;
      *p = (place){p->batch, p->record + 1, body.end - b->payload, delta};
      r->offset = b->base_offset + delta;
      r->headers = body;
      if (r->offset >= end) break;
      if (r->offset >= start) return timestamp(b, delta_ms, &r->timestamp_us);
    }
    if (p->record == b->records && p->at != b->payload_bytes) return MALFORMED;
    if (p->record == b->records && b->more) return CUT;
  }
  return NO_MORE;
}

// How many headers a record has; 0 if that is not said, or cannot be.
static inline int take_header_count(span *from, int64_t *count) {
  return take_varint(from, count) && *count >= 0 && *count <= (from->end - from->at) / 2;
}

// Its keys are never null.
static inline int take_header(span *from, header *h) {
  if (!take_bytes(from, &h->key, &h->key_length) || h->key_length < 0) return 0;
  return take_bytes(from, &h->value, &h->value_length);
}

static inline int64_t size_of(int64_t length) { return length > 0 ? length : 0; }

static int measure_headers(span from, sizes *z) {
  int64_t count;
  header h;
  if (!take_header_count(&from, &count)) return MALFORMED;
  z->headers += count;
  z->rows_with_headers += count > 0;
  for (; count > 0; count--) {
    if (!take_header(&from, &h)) return MALFORMED;
    z->header_key_bytes += h.key_length;
    z->header_value_bytes += size_of(h.value_length);
    z->header_values += h.value_length >= 0;
  }
  return from.at == from.end ? GOOD : MALFORMED;
}

// The rows from `from` on: at most `rows_max`, and `bytes_max` of keys, values and headers (each with its two offsets),
// but one row at least. No column passes the 2 GiB of Arrow's int32 offsets: a single record is smaller. Without a row
// `from` moves past what is not wanted: behind all batches, or to the record of which more is needed. A timestamp that
// nobody wants may be any number; `kgroup_fill` writes what is left of one that is too far.
EXPORTED int32_t kgroup_measure(const batch *batches, int32_t count, place *from, int64_t start, int64_t end,
                                int32_t with_headers, int32_t with_timestamps, int64_t rows_max, int64_t bytes_max,
                                sizes *out) {
  place p = *from;
  sizes z = {0}, with = {0};
  record r;
  int status = GOOD;
  for (; z.rows < rows_max; z = with) {
    status = next_row(batches, count, &p, start, end, &r);
    if (status == NO_MORE || status == CUT) break;
    if (status && (status != FAR_TIMESTAMP || with_timestamps)) return status;
    with.rows++;
    with.keys += r.key_length >= 0;
    with.values += r.value_length >= 0;
    with.key_bytes += size_of(r.key_length);
    with.value_bytes += size_of(r.value_length);
    if (with_headers && measure_headers(r.headers, &with)) return MALFORMED;
    int64_t bytes = with.key_bytes + with.value_bytes + with.header_key_bytes + with.header_value_bytes;
    if (z.rows && bytes + 8 * with.headers > (bytes_max < INT32_MAX ? bytes_max : INT32_MAX)) break;
  }
  if (!z.rows) *from = p;
  *out = z;
  return GOOD;
}

// --------------------------------------------------------------------------------------------------------- the columns

static inline void set_bit(uint8_t *bits, int64_t at, int on) {
  if (!bits) return;
  if (!(at & 7)) bits[at >> 3] = 0;
  bits[at >> 3] |= (uint8_t)((on != 0) << (at & 7));
}

static inline int put(binary *column, int64_t row, const uint8_t *bytes, int64_t length) {
  int64_t used = column->offsets[row], size = size_of(length);
  if (size > column->data_bytes - used || (length < 0 && !column->validity)) return MALFORMED;
  if (size) __builtin_memcpy(column->data + used, bytes, (size_t)size);
  column->offsets[row + 1] = (int32_t)(used + size);
  set_bit(column->validity, row, length >= 0);
  return GOOD;
}

static int put_headers(columns *c, int64_t row, span from) {
  int64_t count, at = c->header_offsets[row];
  header h;
  if (!take_header_count(&from, &count) || count > c->headers - at || (!count && !c->header_validity)) return MALFORMED;
  for (int64_t last = at + count; at < last; at++) {
    if (!take_header(&from, &h) || put(&c->header_key, at, h.key, h.key_length)) return MALFORMED;
    if (put(&c->header_value, at, h.value, h.value_length)) return MALFORMED;
  }
  c->header_offsets[row + 1] = (int32_t)at;
  set_bit(c->header_validity, row, count > 0);
  return GOOD;
}

// Writes `c->rows` rows from `p` on, and leaves `p` behind the last one.
EXPORTED int32_t kgroup_fill(const batch *batches, int32_t count, place *p, int64_t start, int64_t end,
                             int32_t partition, columns *c) {
  record r;
  place at = *p;
  c->key.offsets[0] = c->value.offsets[0] = 0;
  if (c->header_offsets) c->header_offsets[0] = c->header_key.offsets[0] = c->header_value.offsets[0] = 0;
  for (int64_t row = 0; row < c->rows; row++) {
    int status = next_row(batches, count, &at, start, end, &r);
    if (status && status != FAR_TIMESTAMP) return status < 0 ? MALFORMED : status;
    if (put(&c->key, row, r.key, r.key_length) || put(&c->value, row, r.value, r.value_length)) return MALFORMED;
    if (c->header_offsets && put_headers(c, row, r.headers)) return MALFORMED;
    c->partition[row] = partition;
    c->offset[row] = r.offset;
    c->timestamp_us[row] = r.timestamp_us;
    c->timestamp_type[row] = batches[at.batch].log_append_time;
  }
  *p = at;
  return GOOD;
}
