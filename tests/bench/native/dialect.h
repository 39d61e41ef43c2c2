// How to talk to each kind of server, and the little JSON that this needs.
#pragma once
#include "common.h"

struct dialect {
  const char *name, *open, *open_body, *single, *send, *send_body, *delta_event, *done_event, *error_event;
};

#define PLAN_MESSAGE "%s chat=%s"
static const struct dialect dialects[] = {
    {"turnstream", "POST /api/chats", "{}", "POST /api/turns", "POST /api/chats/%s/turns",
     "{\"role\":\"user\",\"blocks\":[{\"type\":\"text\",\"text\":\"" PLAN_MESSAGE "\"}]}", "block_delta", "turn_complete", "turn_error"},
    {"relay", "GET /healthz", "", "POST /chat", "POST /chat", "{\"message\":\"" PLAN_MESSAGE "\"}", "content_block_delta", "message_stop", "error"},
    {"provider", "GET /stats", "", "POST /v1/messages", "POST /v1/messages",
     "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"" PLAN_MESSAGE "\"}]}", "content_block_delta", "message_stop", "error"},
};

static const struct dialect *find_dialect(const char *name) {
  for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++)
    if (!strcmp(dialects[i].name, name)) return &dialects[i];
  fprintf(stderr, "no dialect %s\n", name);
  exit(2);
}

// The first string under this key, however deep.
static bool json_string(const char *body, const char *key, char *value, size_t room) {
  char name[40];
  snprintf(name, sizeof name, "\"%s\":", key);
  while ((body = strstr(body, name))) {
    body += strlen(name);
    body += strspn(body, " ");
    if (*body != '"') continue;
    snprintf(value, room, "%.*s", (int)strcspn(body + 1, "\""), body + 1);
    return true;
  }
  return false;
}

static int json_number(const char *data, size_t length, const char *key) {
  const char *found = memmem(data, length, key, strlen(key));
  return found ? atoi(found + strlen(key)) : 0;
}

static const char *text_of(const char *data, size_t length) {
  static const char *const keys[] = {"\"text\":", "\"thinking\":"};
  for (int i = 0; i < 2; i++) {
    const char *found = memmem(data, length, keys[i], strlen(keys[i]));
    if (found) return found + strlen(keys[i]) + strspn(found + strlen(keys[i]), " ") + 1;
  }
  return NULL;
}
