// Reads one HTTP/1.1 reply, whole or in pieces: head, then a body of known length, chunked, or until the end.
#pragma once
#include "common.h"

struct reply {
  struct buffer raw, body; // body: decoded bytes that nobody has taken yet
  size_t parsed;           // of raw
  int status;
  bool head_read, chunked, event_stream, keep_alive, complete;
  long left; // of the body or of the current chunk; -1: not known
  long retry_after; // seconds, 0 without the header
};

static void reply_reset(struct reply *it) {
  it->raw.length = it->body.length = it->parsed = 0;
  it->status = 0;
  it->head_read = it->chunked = it->event_stream = it->complete = false;
  it->keep_alive = true;
  it->left = -1;
  it->retry_after = 0;
}

static bool reply_read_head(struct reply *it) {
  char *head = it->raw.data, *end = strstr(head, "\r\n\r\n");
  if (!end) return false;
  *end = 0;
  const char *length = strcasestr(head, "\r\ncontent-length:"), *retry_after = strcasestr(head, "\r\nretry-after:");
  it->status = strlen(head) > 9 ? atoi(head + 9) : 0;
  it->chunked = strcasestr(head, "\r\ntransfer-encoding: chunked");
  it->event_stream = it->status == 200 && strcasestr(head, "\r\ncontent-type: text/event-stream");
  it->keep_alive = !strcasestr(head, "\r\nconnection: close");
  it->retry_after = retry_after ? atol(retry_after + strlen("\r\nretry-after:")) : 0;
  it->left = it->status == 204 ? 0 : length ? atol(length + strlen("\r\ncontent-length:")) : -1;
  it->parsed = end + 4 - head;
  it->head_read = true;
  return true;
}

static void reply_take(struct reply *it, size_t length) {
  buffer_add(&it->body, it->raw.data + it->parsed, length);
  it->parsed += length;
  if (it->left > 0) it->left -= length;
}

static size_t reply_ahead(const struct reply *it) { return it->raw.length - it->parsed; }

// Reads one more piece of a chunked body; false: more bytes are needed.
static bool reply_read_chunk(struct reply *it) {
  if (it->left < 0) {
    const char *size = it->raw.data + it->parsed, *end = strstr(size, "\r\n");
    if (!end) return false;
    it->left = strtol(size, NULL, 16);
    it->parsed += end + 2 - size;
    if (it->left == 0) it->complete = true;
  }
  reply_take(it, (size_t)it->left < reply_ahead(it) ? (size_t)it->left : reply_ahead(it));
  if (it->left > 0 || reply_ahead(it) < 2) return false;
  it->parsed += 2;
  it->left = -1;
  return !it->complete;
}

static void reply_feed(struct reply *it, const char *data, size_t length) {
  buffer_add(&it->raw, data, length);
  if (!it->head_read && !reply_read_head(it)) return;
  if (it->chunked) {
    while (reply_read_chunk(it)) continue;
  } else {
    reply_take(it, reply_ahead(it));
    it->complete = it->left == 0;
  }
  buffer_drop(&it->raw, it->parsed);
  it->parsed = 0;
}
