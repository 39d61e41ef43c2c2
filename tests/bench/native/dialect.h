// How to talk to each kind of server, and the little JSON that this needs.
#pragma once
#include "common.h"

// `delta_event` is the name of the event, or the `type` in its data, or "" where an event has neither. `done_event` is the
// same, "[DONE]" for such data, and "" where the end of the body is the end of the turn.
struct dialect {
  const char *name, *open, *open_body, *chat_key, *single, *send, *send_body, *delta_event, *done_event, *error_event, *keys[2];
};

#define PLAN_MESSAGE "%s chat=%s"
#define OF_MESSAGES {"\"text\":", "\"thinking\":"}
#define IN_MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"" PLAN_MESSAGE "\"}]"
static const struct dialect dialects[] = {
    {"turnstream", "POST /api/chats", "{}", "id", "POST /api/turns", "POST /api/chats/%s/turns",
     "{\"role\":\"user\",\"blocks\":[{\"type\":\"text\",\"text\":\"" PLAN_MESSAGE "\"}]}", "block_delta", "turn_complete", "turn_error", OF_MESSAGES},
    {"relay", "GET /healthz", "", "id", "POST /chat", "POST /chat", "{\"message\":\"" PLAN_MESSAGE "\"}", "content_block_delta", "message_stop",
     "error", OF_MESSAGES},
    {"provider", "GET /stats", "", "id", "POST /v1/messages", "POST /v1/messages", "{\"stream\":true," IN_MESSAGES "}", "content_block_delta",
     "message_stop", "error", OF_MESSAGES},
    {"chat-completions", "GET /health/liveliness", "", "id", "POST /v1/chat/completions", "POST /v1/chat/completions",
     "{\"model\":\"bench\",\"stream\":true," IN_MESSAGES "}", "", "[DONE]", "error", {"\"content\":", "\"reasoning_content\":"}},
    {"ui-messages", "GET /healthz", "", "id", "POST /chat", "POST /chat", "{\"id\":\"%2$s\",\"message\":\"%1$s chat=%2$s\"}", "text-delta", "[DONE]",
     "error", {"\"delta\":", "\"delta\":"}},
    {"agent-protocol", "POST /threads", "{}", "thread_id", "POST /runs/stream", "POST /threads/%s/runs/stream",
     "{\"assistant_id\":\"agent\",\"stream_mode\":[\"messages-tuple\"],\"input\":{" IN_MESSAGES "}}", "messages", "", "error",
     {"\"text\":", "\"content\":"}},
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

// The name of an event without an `event:` line.
static void event_of_data(const char *data, size_t length, char *event, size_t room) {
  static const char key[] = "\"type\":";
  data += length && *data == ' ';
  const char *found = strncmp(data, "[DONE]", 6) ? memmem(data, length, key, strlen(key)) : NULL;
  if (!strncmp(data, "[DONE]", 6)) snprintf(event, room, "[DONE]");
  if (!found) return;
  found += strlen(key) + strspn(found + strlen(key), " ");
  if (*found == '"') snprintf(event, room, "%.*s", (int)strcspn(found + 1, "\""), found + 1);
}

static const char *text_of(const char *data, size_t length, const char *const keys[2]) {
  for (int i = 0; i < 2; i++) {
    const char *found = memmem(data, length, keys[i], strlen(keys[i]));
    if (found) return found + strlen(keys[i]) + strspn(found + strlen(keys[i]), " ") + 1;
  }
  return NULL;
}
