// What the provider and the load generator share: the clock, growing buffers and the token that every delta carries.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static int64_t now_us(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000LL + at.tv_nsec / 1000;
}

static double own_cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void *checked(void *memory) {
  if (!memory) abort();
  return memory;
}

// ---- growing buffer; always followed by a NUL so that it can be searched as a string

struct buffer {
  char *data;
  size_t length, capacity;
};

static void buffer_reserve(struct buffer *buffer, size_t more) {
  if (buffer->length + more + 1 <= buffer->capacity) return;
  buffer->capacity = (buffer->length + more + 1) * 2;
  buffer->data = checked(realloc(buffer->data, buffer->capacity));
}

static void buffer_add(struct buffer *buffer, const char *data, size_t length) {
  buffer_reserve(buffer, length);
  memcpy(buffer->data + buffer->length, data, length);
  buffer->length += length;
  buffer->data[buffer->length] = 0;
}

static UNUSED void buffer_print(struct buffer *buffer, const char *format, ...) {
  va_list arguments;
  for (size_t room = 512;; room *= 2) {
    buffer_reserve(buffer, room);
    va_start(arguments, format);
    size_t needed = vsnprintf(buffer->data + buffer->length, room, format, arguments);
    va_end(arguments);
    if (needed < room) {
      buffer->length += needed;
      return;
    }
  }
}

static void buffer_drop(struct buffer *buffer, size_t length) {
  buffer->length -= length;
  if (buffer->data) {
    memmove(buffer->data, buffer->data + length, buffer->length);
    buffer->data[buffer->length] = 0;
  }
}

static UNUSED void buffer_free(struct buffer *buffer) {
  free(buffer->data);
  *buffer = (struct buffer){0};
}

// Writes what the socket takes. -1: the connection is broken, 0: some is left, 1: all is written.
static int buffer_write(struct buffer *buffer, int socket) {
  size_t written = 0;
  while (written < buffer->length) {
    ssize_t count = write(socket, buffer->data + written, buffer->length - written);
    if (count < 0 && errno != EAGAIN) return -1;
    if (count < 0) break;
    written += count;
  }
  buffer_drop(buffer, written);
  return buffer->length == 0;
}

// ---- the token: a mark, then the chat, the place in the turn and the send time in base 36. It has one length, so that
// text that a server merged or cut elsewhere can still be checked piece by piece.

#define TOKEN_MARK '|'
enum { CHAT_DIGITS = 3, PLACE_DIGITS = 4, TIME_DIGITS = 7, TOKEN_DIGITS = CHAT_DIGITS + PLACE_DIGITS + TIME_DIGITS };
static const int64_t TIME_WRAP = 78364164096; // 36^7 us: 21 hours

static UNUSED void to_base36(char *digits, int count, int64_t value) {
  for (int i = count - 1; i >= 0; i--, value /= 36) digits[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[value % 36];
}

static int base36_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  return letter >= 'a' && letter <= 'z' ? letter - 'a' + 10 : -1;
}

static UNUSED int64_t from_base36(const char *digits, int count) {
  int64_t value = 0;
  for (int i = 0; i < count; i++) value = value * 36 + base36_digit(digits[i]);
  return value;
}

// ---- plans: "plan deltas=200 rate=50 …", words of a user message

static int plan_number(const char *plan, const char *key, int otherwise) {
  char word[40];
  snprintf(word, sizeof word, " %s=", key);
  size_t reach = strcspn(plan, "\"");
  const char *found = memmem(plan, reach, word, strlen(word));
  return found ? atoi(found + strlen(word)) : otherwise;
}

// ---- epoll

static void watch(int poller, int operation, int socket, uint32_t events, void *owner) {
  struct epoll_event event = {.events = events, .data.ptr = owner};
  epoll_ctl(poller, operation, socket, &event);
}

static int wait_for_events(int poller, struct epoll_event *events, int room, int64_t until_us) {
  int64_t left = until_us - now_us();
  if (left < 0) left = 0;
  struct timespec timeout = {left / 1000000, left % 1000000 * 1000};
  struct pollfd waiting = {.fd = poller, .events = POLLIN}; // ppoll, because epoll_wait counts whole milliseconds
  if (ppoll(&waiting, 1, &timeout, NULL) <= 0) return 0;
  return epoll_wait(poller, events, room, 0);
}

static const char *option(int count, char **words, const char *name, const char *otherwise) {
  for (int i = 1; i + 1 < count; i += 2)
    if (!strcmp(words[i], name)) return words[i + 1];
  return otherwise;
}
