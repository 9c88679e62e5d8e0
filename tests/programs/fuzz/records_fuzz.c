// Mutated Fetch answers through the decoder: no sanitizer complains, and no row breaks a law of its columns.
//
//   records_fuzz SEEDS SEED FIRST COUNT
//
// SEEDS: a file of answers, each behind its length. Answer n of a seed is always the same, so a finding is repeated
// with FIRST = n and COUNT = 1. Compiled with the decoder in it: every buffer is of exactly the size that the decoder
// is told, so that the address sanitizer sees one byte too many.
#include "records.c"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)  // GCC's name for it
#define ADDRESSES_WATCHED 1
#elif defined(__has_feature)
#define ADDRESSES_WATCHED __has_feature(address_sanitizer)
#endif

static uint64_t state, seed;
static int64_t answer_number, by_status[5], rows_read;

static uint64_t any(uint64_t below) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return (z ^ z >> 31) % below;
}

static void on_signal(int number) {
  fprintf(stderr, "\nanswer %lld of SEED=%llu\n", (long long)answer_number, (unsigned long long)seed);
  _Exit(128 + number);
}

static void law(int kept, const char *words) {
  if (kept) return;
  fprintf(stderr, "broken: %s\n", words);
  abort();
}

static void *exactly(int64_t size) {
  void *memory = malloc((size_t)size);
  if (!memory && size) abort();
  return memory;
}

// ---------------------------------------------------------------------------------------------------------- the answer

static void put_int32(uint8_t *at, uint32_t number) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(number >> (24 - 8 * i));
}

// Where a random batch begins; mostly one near the front.
static int64_t a_batch(const uint8_t *bytes, int64_t size) {
  int64_t at = 0;
  for (uint64_t skip = any(6); skip && size - at > 12; skip--) {
    int64_t next = at + 12 + int32_at(bytes + at + LENGTH_AT);
    if (next <= at || size - next <= 12) break;
    at = next;
  }
  return at;
}

// Ends the answer within a batch, whose length says so: what is missing is not left over, but wrong.
static int64_t cut(uint8_t *bytes, int64_t size) {
  int64_t at = a_batch(bytes, size), most = size - at < 260 ? size - at : 260;
  if (most < 13) return size;
  size = at + 13 + (int64_t)any((uint64_t)most - 12);
  put_int32(bytes + at + LENGTH_AT, (uint32_t)(size - at - 12));
  return size;
}

static void mutate(uint8_t *bytes, int64_t size) {
  static const uint32_t numbers[] = {0,   1,   2,     7,         48,       49,  50,
                                     127, 128, 65536, INT32_MAX, 1u << 31, UINT32_MAX};
  static const uint8_t values[] = {0, 1, 2, 3, 0x7f, 0x80, 0x81, 0xfe, 0xff};
  int64_t from = any(3) ? a_batch(bytes, size) : 0, near = size - from < 160 ? size - from : 160;
  int64_t at = from + (int64_t)any((uint64_t)(any(4) ? near : size - from));
  if (!any(12)) at = size - 1;  // what is read behind it is outside
  switch (any(8)) {
    case 0: bytes[at] = (uint8_t)any(256); break;
    case 1: bytes[at] ^= (uint8_t)(1 << any(8)); break;
    case 2: bytes[at] = values[any(sizeof values)]; break;
    case 3: if (size - at >= 4) put_int32(bytes + at, numbers[any(sizeof numbers / sizeof *numbers)]); break;
    case 4: {
      int byte = any(2) ? 0xff : 0x80;
      memset(bytes + at, byte, (size_t)(size - at < 12 ? size - at : (int64_t)any(12)));
      break;
    }
    case 5: {
      int64_t other = (int64_t)any((uint64_t)size), length = (int64_t)any(80);
      if (length <= size - at && length <= size - other) memmove(bytes + at, bytes + other, (size_t)length);
      break;
    }
    case 6:  // a first offset near the end of all offsets
      if (size - from < 16) break;
      put_int32(bytes + from, INT32_MAX);
      put_int32(bytes + from + 4, 0u - (uint32_t)any(9));
      break;
    default: bytes[at] = (uint8_t)(bytes[at] + (any(2) ? 2 : -2)); break;  // one more, or less, of a zigzag varint
  }
}

static void put_checksums(uint8_t *bytes, int64_t size) {
  for (int64_t at = 0; size - at >= ATTRIBUTES_AT;) {
    int64_t batch_size = 12 + (int64_t)int32_at(bytes + at + LENGTH_AT);
    if (batch_size < ATTRIBUTES_AT || batch_size > size - at) return;
    put_int32(bytes + at + CHECKSUM_AT, kgroup_crc32c(bytes + at + ATTRIBUTES_AT, batch_size - ATTRIBUTES_AT, 1));
    at += batch_size;
  }
}

// --------------------------------------------------------------------------------------------------------- the columns

static binary new_binary(int64_t length, int64_t present, int64_t data_bytes) {
  uint8_t *validity = present < length ? exactly((length + 7) / 8) : NULL;
  return (binary){exactly(4 * (length + 1)), exactly(data_bytes), validity, data_bytes};
}

static columns new_columns(const sizes *z, int with_headers) {
  columns c = {.rows = z->rows, .headers = z->headers};
  c.key = new_binary(z->rows, z->keys, z->key_bytes);
  c.value = new_binary(z->rows, z->values, z->value_bytes);
  c.partition = exactly(4 * z->rows);
  c.timestamp_type = exactly(4 * z->rows);
  c.offset = exactly(8 * z->rows);
  c.timestamp_us = exactly(8 * z->rows);
  if (with_headers) {
    c.header_key = new_binary(z->headers, z->headers, z->header_key_bytes);
    c.header_value = new_binary(z->headers, z->header_values, z->header_value_bytes);
    c.header_offsets = exactly(4 * (z->rows + 1));
    if (z->rows_with_headers < z->rows) c.header_validity = exactly((z->rows + 7) / 8);
  }
  return c;
}

static void free_columns(columns *c) {
  binary *each[] = {&c->key, &c->value, &c->header_key, &c->header_value};
  for (int i = 0; i < 4; i++) free(each[i]->offsets), free(each[i]->data), free(each[i]->validity);
  free(c->partition), free(c->timestamp_type), free(c->offset), free(c->timestamp_us);
  free(c->header_offsets), free(c->header_validity);
}

static void check_offsets(const int32_t *offsets, int64_t length, int64_t end) {
  law(offsets[0] == 0 && offsets[length] == end, "a column's last offset is the size of its data");
  for (int64_t i = 0; i < length; i++) law(offsets[i] <= offsets[i + 1], "a column's offsets never fall");
}

static void check_binary(const binary *b, int64_t length, int64_t present) {
  int64_t valid = 0;
  check_offsets(b->offsets, length, b->data_bytes);
  for (int64_t i = 0; i < length; i++) valid += !b->validity || b->validity[i >> 3] >> (i & 7) & 1;
  law(valid == present, "as many values are valid as were counted");
}

static void check_columns(const columns *c, const sizes *z, int64_t start, int64_t end, int64_t *last) {
  check_binary(&c->key, c->rows, z->keys);
  check_binary(&c->value, c->rows, z->values);
  for (int64_t i = 0; i < c->rows; i++) {
    law(c->offset[i] > *last && c->offset[i] >= start && c->offset[i] < end, "offsets rise, within the range");
    law(c->partition[i] == 3 && (c->timestamp_type[i] | 1) == 1, "partition and timestamp type are what they can be");
    *last = c->offset[i];
  }
  if (!c->header_offsets) return;
  check_offsets(c->header_offsets, c->rows, c->headers);
  check_binary(&c->header_key, c->headers, c->headers);
  check_binary(&c->header_value, c->headers, z->header_values);
}

// ------------------------------------------------------------------------------------------------------------- one run

static int read_batches(batch *found, int32_t count, int64_t start, int64_t end, uint8_t *bytes, int64_t size,
                        int64_t *last) {
  place at = {0, 0, 0, -1};
  int with_headers = (int)any(2), with_timestamps = (int)any(2);
  for (int32_t i = 0; i < count; i++) found[i].more = !any(4);  // its end is where a piece of it ends
  while (at.batch < count) {
    sizes z;
    int64_t rows_max = any(2) ? 65536 : 1 + (int64_t)any(9), bytes_max = any(2) ? 8 << 20 : (int64_t)any(500);
    int status = kgroup_measure(found, count, &at, start, end, with_headers, with_timestamps, rows_max,
                                bytes_max, &z);
    if (status || !z.rows) return status;
    columns c = new_columns(&z, with_headers);
    int changed = !any(8);  // somebody writes to the answer between the two calls: rows are wrong, memory is not
    for (uint64_t changes = changed ? 1 + any(5) : 0; changes; changes--) mutate(bytes, size);
    status = kgroup_fill(found, count, &at, start, end, 3, &c);
    if (!changed) {
      law(status == GOOD, "what was measured can be filled");
      check_columns(&c, &z, start, end, last);
      rows_read += z.rows;
    }
    free_columns(&c);
    if (changed) return status;
  }
  return GOOD;
}

static int run(uint8_t *bytes, int64_t size) {
  int64_t start = any(2) ? 0 : (int64_t)any(60), last = -1;
  int64_t end = any(2) ? INT64_MAX : start + 1 + (int64_t)any(60), aborted_count = any(2) ? 0 : (int64_t)any(5);
  aborted_transaction *aborted = exactly(aborted_count * (int64_t)sizeof *aborted);
  int64_t *producers = exactly(8 * 4), next = 0;
  uint8_t *now = exactly(4);
  for (int64_t i = 0; i < 4; i++) producers[i] = 6 + i;
  memset(now, 0, 4);
  for (int64_t i = 0; i < aborted_count; i++) {
    next += (int64_t)any(20);
    aborted[i] = (aborted_transaction){(int64_t)any(4), next};
  }
  walk w = {.bytes = bytes, .size = size, .start = start, .end = end, .aborted = aborted,
            .producers = producers, .aborted_now = now, .aborted_count = aborted_count, .producer_count = 4};
  int32_t room = 1 + (int32_t)any(6), count = room;
  int status = GOOD;
  while (status == GOOD && count == room) {
    batch *found = exactly(room * (int64_t)sizeof *found);
    int64_t before = w.at;
    status = kgroup_walk(&w, found, room, &count);
    law(w.at >= before && w.at <= size && w.aborted_begun <= aborted_count, "a walk stays in its answer");
    if (status == GOOD) status = read_batches(found, count, start, end, bytes, size, &last);
    free(found);
  }
  free(aborted), free(producers), free(now);
  return status;
}

int main(int arguments, char **given) {
  static uint8_t file[1 << 20], drafted[1 << 20];
  static int64_t begins[1000], lengths[1000];
  int64_t known = 0, read, first, count;
  FILE *seeds = arguments == 5 ? fopen(given[1], "rb") : NULL;
  if (!seeds) return 2;
  read = (int64_t)fread(file, 1, sizeof file, seeds);
  for (int64_t at = 0; read - at > 4; at += 4 + lengths[known++]) {
    begins[known] = at + 4;
    lengths[known] = int32_at(file + at);
  }
  seed = strtoull(given[2], NULL, 10), first = strtoll(given[3], NULL, 10), count = strtoll(given[4], NULL, 10);
  signal(SIGABRT, on_signal);  // a sanitizer's, or ours
  signal(SIGILL, on_signal);
  signal(SIGTRAP, on_signal);
#if !ADDRESSES_WATCHED  // else the sanitizer has handlers of its own, which say more
  signal(SIGSEGV, on_signal);
  signal(SIGBUS, on_signal);
#endif
  for (answer_number = first; answer_number < first + count; answer_number++) {
    state = seed * 0x2545f4914f6cdd1d + (uint64_t)answer_number;
    int64_t chosen = (int64_t)any((uint64_t)known), size = lengths[chosen];
    if (!any(4)) size = 1 + (int64_t)any((uint64_t)size);
    memcpy(drafted, file + begins[chosen], (size_t)size);
    if (!any(6)) size = cut(drafted, size);
    uint8_t *bytes = exactly(size);
    memcpy(bytes, drafted, (size_t)size);
    for (uint64_t changes = any(6); changes; changes--) mutate(bytes, size);
    if (any(16)) put_checksums(bytes, size);
    by_status[run(bytes, size)]++;
    free(bytes);
  }
  static const char *const names[] = {"good", "old format", "bad checksum", "malformed", "far timestamp"};
  printf("rows %lld", (long long)rows_read);
  for (int i = 0; i < 5; i++) printf(", %s %lld", names[i], (long long)by_status[i]);
  return 0;
}
