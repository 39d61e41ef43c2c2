// A fake Anthropic provider: POST /v1/messages streams what the plan in the last user message asks for.
//
//   plan deltas=200 rate=50 first=0 thinking=0 rounds=0 tools=1 tool=search chat=00a
//
// deltas    text deltas of one call             rate     deltas per second, 0: as fast as the socket takes them
// first     ms before the first delta           thinking thinking deltas before the text
// rounds    calls that end in tool_use          tools    parallel tool_use blocks of such a call, all named `tool`
// chat      three base-36 digits put into every token
// lose, repeat, swap    a delta that is left out, sent twice, or sent after its successor: to test the tester
#include "common.h"

static const int UNPACED_BATCH = 16;
static const int64_t SHORTEST_WAIT_US = 250; // a wake-up per delta would cost as much as the delta

struct plan {
  int deltas, rate, first_ms, thinking, rounds, tools, lose, repeat, swap;
  char tool[64], chat[CHAT_DIGITS + 1];
};

struct connection {
  int socket, heap_place;
  struct buffer in, out;
  bool blocked, streaming;
  struct plan plan;
  int round, sent, block;
  int64_t due;
};

static struct {
  long requests, completed, aborted, active, connections, deltas, refused, late_over_5ms;
  int64_t late_max_us;
} stats;
static int poller;

// ---- timers: a binary heap of the streams by the time of their next delta

static struct connection **heap;
static int heap_count, heap_room;

static void heap_put(int place, struct connection *item) {
  heap[place] = item;
  item->heap_place = place;
}

static void heap_settle(int place, struct connection *item) {
  for (int above; place && heap[above = (place - 1) / 2]->due > item->due; place = above) heap_put(place, heap[above]);
  for (int below; (below = place * 2 + 1) < heap_count; place = below) {
    if (below + 1 < heap_count && heap[below + 1]->due < heap[below]->due) below++;
    if (heap[below]->due >= item->due) break;
    heap_put(place, heap[below]);
  }
  heap_put(place, item);
}

static void heap_add(struct connection *item) {
  if (heap_count == heap_room) heap = checked(realloc(heap, (heap_room += 1024) * sizeof *heap));
  heap_count++;
  heap_settle(heap_count - 1, item);
}

static void heap_remove(struct connection *item) {
  if (item->heap_place < 0) return;
  struct connection *last = heap[--heap_count];
  if (last != item) heap_settle(item->heap_place, last);
  item->heap_place = -1;
}

// ---- writing the stream

static void drop_connection(struct connection *it) {
  heap_remove(it);
  if (it->streaming) stats.aborted++, stats.active--;
  stats.connections--;
  close(it->socket);
  buffer_free(&it->in);
  buffer_free(&it->out);
  free(it);
}

static bool flush(struct connection *it) {
  int state = buffer_write(&it->out, it->socket);
  if (state >= 0 && it->blocked != (state == 0)) {
    it->blocked = state == 0;
    watch(poller, EPOLL_CTL_MOD, it->socket, it->blocked ? EPOLLIN | EPOLLOUT : EPOLLIN, it);
  }
  return state >= 0;
}

static void send_event(struct connection *it, const char *event, const char *format, ...) {
  char data[1024];
  va_list arguments;
  va_start(arguments, format);
  size_t length = vsnprintf(data, sizeof data, format, arguments);
  va_end(arguments);
  size_t frame = strlen("event: \ndata: \n\n") + strlen(event) + length;
  buffer_print(&it->out, "%zx\r\nevent: %s\ndata: %s\n\n\r\n", frame, event, data);
}

static void send_ping(struct connection *it) { send_event(it, "ping", "{\"type\": \"ping\"}"); }

static void send_start(struct connection *it) {
  buffer_print(&it->out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
                         "request-id: req_bench%ld\r\ntransfer-encoding: chunked\r\n\r\n", stats.requests);
  send_event(it, "message_start",
             "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_bench%ld\",\"type\":\"message\",\"role\":\"assistant\","
             "\"model\":\"bench\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":25,"
             "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":1}}}", stats.requests);
  send_ping(it);
}

static void open_block(struct connection *it, const char *content) {
  send_event(it, "content_block_start", "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":%s}", it->block, content);
}

static void send_block_delta(struct connection *it, const char *type, const char *key, const char *value) {
  send_event(it, "content_block_delta", "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":\"%s\"}}",
             it->block, type, key, value);
}

static void close_block(struct connection *it) {
  send_event(it, "content_block_stop", "{\"type\":\"content_block_stop\",\"index\":%d}", it->block++);
}

static int deltas_of_call(const struct plan *plan) { return plan->thinking + plan->deltas; }

static void send_token(struct connection *it, int place) {
  char token[TOKEN_DIGITS + 2] = {TOKEN_MARK};
  memcpy(token + 1, it->plan.chat, CHAT_DIGITS);
  to_base36(token + 1 + CHAT_DIGITS, PLACE_DIGITS, it->round * deltas_of_call(&it->plan) + place);
  to_base36(token + 1 + CHAT_DIGITS + PLACE_DIGITS, TIME_DIGITS, now_us() % TIME_WRAP);
  if (it->sent < it->plan.thinking) send_block_delta(it, "thinking_delta", "thinking", token);
  else send_block_delta(it, "text_delta", "text", token);
  stats.deltas++;
}

static int place_to_send(const struct plan *plan, int sent) {
  if (plan->swap >= 0 && sent == plan->swap) return sent + 1;
  if (plan->swap >= 0 && sent == plan->swap + 1) return sent - 1;
  return sent;
}

static void send_delta(struct connection *it) {
  const struct plan *plan = &it->plan;
  if (it->sent == plan->thinking) open_block(it, "{\"type\":\"text\",\"text\":\"\"}");
  else if (it->sent == 0) open_block(it, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
  int place = place_to_send(plan, it->sent);
  if (place != plan->lose) send_token(it, place);
  if (place == plan->repeat) send_token(it, place);
  it->sent++;
  if (it->sent % 100 == 0) send_ping(it);
  if (it->sent == plan->thinking) {
    send_block_delta(it, "signature_delta", "signature", "YmVuY2g=");
    close_block(it);
  }
}

static void send_tool_use(struct connection *it, int number) {
  char start[256];
  snprintf(start, sizeof start, "{\"type\":\"tool_use\",\"id\":\"toolu_%ld_%d\",\"name\":\"%s\",\"input\":{}}",
           stats.requests, number, it->plan.tool);
  open_block(it, start);
  send_block_delta(it, "input_json_delta", "partial_json", "{\\\"query\\\": ");
  send_block_delta(it, "input_json_delta", "partial_json", "\\\"bench\\\"}");
  close_block(it);
}

static void send_end(struct connection *it) {
  bool tool_round = it->round < it->plan.rounds;
  if (it->plan.deltas) close_block(it);
  for (int i = 0; tool_round && i < it->plan.tools; i++) send_tool_use(it, i);
  send_event(it, "message_delta",
             "{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"%s\",\"stop_sequence\":null},"
             "\"usage\":{\"output_tokens\":%d}}", tool_round ? "tool_use" : "end_turn", it->sent);
  send_event(it, "message_stop", "{\"type\":\"message_stop\"}");
  buffer_add(&it->out, "0\r\n\r\n", 5);
  it->streaming = false;
  stats.completed++;
  stats.active--;
}

static void note_lateness(int64_t late_us) {
  if (late_us > 5000) stats.late_over_5ms++;
  if (late_us > stats.late_max_us) stats.late_max_us = late_us;
}

// Sends what is due. A reader that is too slow gets paced deltas all the same: its delay is part of the measurement.
static bool advance(struct connection *it) {
  int batch = it->plan.rate ? 1 : UNPACED_BATCH;
  if (it->plan.rate) note_lateness(now_us() - it->due);
  while (batch-- && it->sent < deltas_of_call(&it->plan)) send_delta(it);
  if (it->sent == deltas_of_call(&it->plan)) send_end(it);
  if (!flush(it)) return false;
  if (!it->streaming) return true;
  it->due += it->plan.rate ? 1000000 / it->plan.rate : 0;
  if (it->plan.rate || !it->blocked) heap_add(it);
  return true;
}

// ---- reading requests

static void plan_word(const char *plan, const char *key, char *word, size_t room) {
  char start[40];
  snprintf(start, sizeof start, " %s=", key);
  const char *found = memmem(plan, strcspn(plan, "\""), start, strlen(start));
  if (found) snprintf(word, room, "%.*s", (int)strcspn(found + strlen(start), " \""), found + strlen(start));
}

static struct plan read_plan(const char *text) {
  struct plan plan = {
      .deltas = plan_number(text, "deltas", 20), .rate = plan_number(text, "rate", 50),
      .first_ms = plan_number(text, "first", 0), .thinking = plan_number(text, "thinking", 0),
      .rounds = plan_number(text, "rounds", 0), .tools = plan_number(text, "tools", 1),
      .lose = plan_number(text, "lose", -1), .repeat = plan_number(text, "repeat", -1),
      .swap = plan_number(text, "swap", -1), .tool = "search", .chat = "000"};
  plan_word(text, "tool", plan.tool, sizeof plan.tool);
  plan_word(text, "chat", plan.chat, sizeof plan.chat);
  return plan;
}

static const char *last_plan(const char *body) {
  const char *last = "";
  for (const char *found = body; (found = strstr(found, "plan ")); found++) last = found;
  return last;
}

static int assistant_messages_after(const char *text) {
  int count = 0;
  for (; (text = strstr(text, "\"role\"")); text++) {
    const char *value = text + strlen("\"role\"");
    value += strspn(value, ": ");
    if (!strncmp(value, "\"assistant\"", 11)) count++;
  }
  return count;
}

static void answer(struct connection *it, const char *status, const char *json) {
  buffer_print(&it->out, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(json), json);
}

static void answer_whole_message(struct connection *it) {
  answer(it, "200 OK", "{\"id\":\"msg_bench\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"bench\",\"content\":[{\"type\":\"text\","
                       "\"text\":\"ok\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}");
}

static void start_stream(struct connection *it, const char *body) {
  const char *plan = last_plan(body);
  stats.requests++;
  if (!strstr(body, "\"stream\":true") && !strstr(body, "\"stream\": true")) {
    answer_whole_message(it);
    return;
  }
  it->plan = read_plan(plan);
  if (!strstr(body, "\"tools\"")) it->plan.rounds = 0;
  it->round = assistant_messages_after(plan);
  it->sent = it->block = 0;
  it->streaming = true;
  it->due = now_us() + it->plan.first_ms * 1000LL;
  stats.active++;
  send_start(it);
  if (deltas_of_call(&it->plan)) heap_add(it);
  else send_end(it);
}

static void answer_stats(struct connection *it) {
  char json[512];
  snprintf(json, sizeof json,
           "{\"requests\":%ld,\"completed\":%ld,\"aborted\":%ld,\"active\":%ld,\"connections\":%ld,\"refused\":%ld,\"deltas\":%ld,"
           "\"late_over_5ms\":%ld,\"late_max_ms\":%.3f,\"cpu_seconds\":%.6f}",
           stats.requests, stats.completed, stats.aborted, stats.active, stats.connections, stats.refused, stats.deltas,
           stats.late_over_5ms, stats.late_max_us / 1000.0, own_cpu_seconds());
  stats.late_over_5ms = stats.late_max_us = 0;
  answer(it, "200 OK", json);
}

static void refuse(struct connection *it, const char *status) {
  stats.refused++;
  answer(it, status, "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":\"only POST /v1/messages and GET /stats\"}}");
}

static void handle_request(struct connection *it, const char *head, const char *body) {
  if (!strncmp(head, "POST /v1/messages ", 18) || !strncmp(head, "POST /v1/messages?", 18)) start_stream(it, body);
  else if (!strncmp(head, "GET /stats", 10)) answer_stats(it);
  else refuse(it, "404 Not Found");
}

// One request at a time: no client of this API pipelines.
static bool read_requests(struct connection *it) {
  for (;;) {
    buffer_reserve(&it->in, 65536);
    ssize_t count = read(it->socket, it->in.data + it->in.length, 65536);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return false;
    if (count < 0) break;
    it->in.length += count;
  }
  it->in.data[it->in.length] = 0;
  while (!it->streaming && it->in.length) {
    char *end = strstr(it->in.data, "\r\n\r\n");
    if (!end) break;
    *end = 0;
    char *length = strcasestr(it->in.data, "\r\ncontent-length:");
    size_t body = end + 4 - it->in.data, whole = body + (length ? strtoul(length + 17, NULL, 10) : 0);
    *end = '\r';
    if (it->in.length < whole) break;
    char after = it->in.data[whole];
    it->in.data[whole] = 0;
    handle_request(it, it->in.data, it->in.data + body);
    it->in.data[whole] = after;
    buffer_drop(&it->in, whole);
  }
  return flush(it);
}

static void accept_connections(int listener) {
  int socket, yes = 1;
  while ((socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct connection *it = checked(calloc(1, sizeof *it));
    it->socket = socket;
    it->heap_place = -1;
    stats.connections++;
    watch(poller, EPOLL_CTL_ADD, socket, EPOLLIN, it);
  }
}

static void handle_event(struct connection *it, uint32_t events) {
  bool alive = !(events & (EPOLLERR | EPOLLHUP));
  if (alive && events & EPOLLOUT) {
    alive = flush(it);
    if (alive && !it->blocked && it->streaming && it->heap_place < 0) heap_add(it);
  }
  if (alive && events & EPOLLIN) alive = read_requests(it);
  if (!alive) drop_connection(it);
}

static void send_due(void) {
  int64_t now = now_us();
  for (int budget = 2048; budget && heap_count && heap[0]->due <= now; budget--) {
    struct connection *it = heap[0];
    heap_remove(it);
    if (!advance(it)) drop_connection(it);
  }
}

static int64_t next_wake_up(void) {
  int64_t now = now_us();
  if (!heap_count) return now + 1000000;
  if (heap[0]->due <= now) return now;
  return heap[0]->due > now + SHORTEST_WAIT_US ? heap[0]->due : now + SHORTEST_WAIT_US;
}

static int listen_on(int port) {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
    perror("listen");
    exit(1);
  }
  return listener;
}

int main(int count, char **words) {
  signal(SIGPIPE, SIG_IGN);
  poller = epoll_create1(EPOLL_CLOEXEC);
  int listener = listen_on(atoi(option(count, words, "--port", "9000")));
  watch(poller, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
  struct epoll_event events[512];
  for (;;) {
    int ready = wait_for_events(poller, events, 512, next_wake_up());
    for (int i = 0; i < ready; i++) {
      if (events[i].data.ptr) handle_event(events[i].data.ptr, events[i].events);
      else accept_connections(listener);
    }
    send_due();
  }
}
