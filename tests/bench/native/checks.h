// Follows the tokens of one turn through text that may arrive in any pieces, and counts what is wrong with them.
#pragma once
#include "common.h"

struct checks {
  int expected;
  char chat[CHAT_DIGITS + 1];
  // of the present pass over the turn
  uint8_t *seen; // per place the number of the block it came in, plus 1
  int block;
  int distinct, highest;
  char digits[TOKEN_DIGITS];
  int digit_count; // -1: outside a token
  // of all passes
  long repeated, disordered, foreign;
};

struct token {
  int place;
  int64_t sent_us;
};

static void checks_restart(struct checks *it) {
  memset(it->seen, 0, it->expected);
  it->distinct = 0;
  it->highest = -1;
  it->digit_count = -1;
}

// The server has taken back everything from this block on.
static void checks_forget(struct checks *it, int block) {
  it->highest = it->digit_count = -1;
  for (int place = 0; place < it->expected; place++) {
    if (it->seen[place] > block) {
      it->seen[place] = 0;
      it->distinct--;
    } else if (it->seen[place]) it->highest = place;
  }
}

static void checks_start(struct checks *it, int chat, int expected) {
  *it = (struct checks){.expected = expected, .seen = checked(calloc(1, expected + 1))};
  to_base36(it->chat, CHAT_DIGITS, chat);
  checks_restart(it);
}

static int64_t latency_us(int64_t received_us, int64_t sent_us) {
  return (received_us % TIME_WRAP - sent_us + TIME_WRAP) % TIME_WRAP;
}

static bool checks_note(struct checks *it, int place) {
  if (memcmp(it->digits, it->chat, CHAT_DIGITS) || place >= it->expected) return it->foreign++, false;
  if (it->seen[place]) return it->repeated++, false;
  if (place < it->highest) it->disordered++;
  else it->highest = place;
  it->seen[place] = it->block < 254 ? it->block + 1 : 255;
  it->distinct++;
  return true;
}

// Takes one character; true when it completed a token that belongs here and is new.
static bool checks_take(struct checks *it, char letter, struct token *token) {
  if (letter == TOKEN_MARK) it->digit_count = 0;
  else if (it->digit_count < 0) return false;
  else if (base36_digit(letter) < 0) it->digit_count = -1;
  else {
    it->digits[it->digit_count++] = letter;
    if (it->digit_count < TOKEN_DIGITS) return false;
    it->digit_count = -1;
    token->place = from_base36(it->digits + CHAT_DIGITS, PLACE_DIGITS);
    token->sent_us = from_base36(it->digits + CHAT_DIGITS + PLACE_DIGITS, TIME_DIGITS);
    return checks_note(it, token->place);
  }
  return false;
}
