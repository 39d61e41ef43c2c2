// The load generator: many chats at once against one server, every delta checked and timed. Prints one JSON object,
// and before it {"attached":N} once every client holds an open stream.
//
//   --dialect NAME (dialect.h) --port P --chats N --plan "deltas=200 rate=50" --ramp SECONDS --limit SECONDS
//   --single 1       no chat is opened: one request sends the message, and its answer is the stream
//   --burst 1        open every chat first, then send all the turns at once, each on a new connection
//   --readers N      further clients that follow the turn of the first chat
//   --token T        credential of all requests; of several, separated by commas, each chat has one
//   --refusals 1     an answer of 429 or 503 to a message is counted and timed, and the chat ends with it; without this
//                    a 503 with Retry-After is followed, as clients do, and the clock of the turn runs on
//   --second-port P  every other chat goes there
//   --mirror-port P  each turn has a second reader, there; its deltas are timed apart
//   --cuts N --gap-ms M   drop each connection N times in mid-turn, come back within M ms with Last-Event-ID;
//                         after the end ask once more, which has to be answered with 204
//   --replays N      after the end read the whole turn N times again from its beginning
#include "checks.h"
#include "common.h"
#include "dialect.h"
#include "reply.h"
#include "results.h"

enum step { OPEN, SEND, FOLLOW, ASK_AFTER_END };
enum phase { RESTING, CONNECTING, WAITING_FOR_REPLY, FINISHED };

struct client {
  int socket, number, port, follows;
  bool reader, mirror, socket_reused, attached, turn_done;
  enum step step;
  enum phase phase;
  int64_t wake, wanted, asked, first_sent, last_sent;
  struct buffer request;
  struct reply reply;
  char chat[64], url[256], last_id[256], pending_id[256], event[48];
  struct checks checks;
  int cuts_left, cut_at, replays_left;
  bool replaying, resuming, postponed;
};

static const struct dialect *dialect;
static const char *credentials[100];
static int credential_count;
static char plan[400];
static int port, second_port, mirror_port, chats = 1, readers, cuts, gap_ms, replays, poller;
static bool burst, single, refusals;
static double ramp_seconds = 1;

static struct client *clients;
static int client_count, opened, attached, finished;
static int64_t started, last_end, next_wake;

static void rest(struct client *it, int64_t until, enum step then) {
  it->phase = RESTING;
  it->step = then;
  it->wake = until;
  if (until < next_wake) next_wake = until;
}

static void hang_up(struct client *it) {
  if (it->socket >= 0) close(it->socket);
  it->socket = -1;
}

// ---- ends

static void end_pass(struct client *it) { total.lost += it->checks.expected - it->checks.distinct; }

static void finish(struct client *it) {
  hang_up(it);
  it->phase = FINISHED;
  finished++;
  last_end = now_us();
}

static void fail(struct client *it, const char *why) {
  static const char *const names[] = {"open", "send", "follow", "ask after end"};
  total.failed++;
  if (!total.first_failure[0])
    snprintf(total.first_failure, sizeof total.first_failure, "%s %d, %s: %s, status %d %.200s", it->reader ? "reader" : "chat",
             it->number, names[it->step], why, it->reply.status, it->reply.body.length ? it->reply.body.data : "");
  if (it->step == FOLLOW || (it->step == SEND && it->reply.event_stream)) end_pass(it);
  finish(it);
}

// The server has no room now.
static void refuse(struct client *it) {
  char code[40] = "";
  json_string(it->reply.body.length ? it->reply.body.data : "", "code", code, sizeof code);
  count_refusal(it->reply.status, code, it->reply.retry_after > 0);
  histogram_add(&refusal, now_us() - it->wanted);
  finish(it);
}

// The server has no room for a while.
static void postpone(struct client *it) {
  it->postponed = true;
  total.postponed++;
  rest(it, now_us() + it->reply.retry_after * 1000000, it->step);
}

static void succeed(struct client *it) {
  total.completed++;
  finish(it);
}

// ---- requests

static void build_request(struct client *it) {
  char path[400], body[1024] = "";
  if (it->step == OPEN) {
    snprintf(path, sizeof path, "%s", dialect->open);
    snprintf(body, sizeof body, "%s", dialect->open_body);
  } else if (it->step == SEND) {
    snprintf(path, sizeof path, single ? dialect->single : dialect->send, it->chat);
    snprintf(body, sizeof body, dialect->send_body, plan, it->checks.chat);
  } else
    snprintf(path, sizeof path, "GET %s", it->url);
  it->request.length = 0;
  buffer_print(&it->request, "%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: %s\r\n", path, it->port,
               it->step == FOLLOW || single ? "text/event-stream" : "*/*");
  const char *credential = credentials[it->follows % credential_count];
  if (credential[0]) buffer_print(&it->request, "Authorization: Bearer %s\r\n", credential);
  if (it->step >= FOLLOW && it->last_id[0]) buffer_print(&it->request, "Last-Event-ID: %s\r\n", it->last_id);
  if (body[0]) buffer_print(&it->request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
  buffer_print(&it->request, "\r\n%s", body);
}

static void send_request(struct client *it) {
  int state = buffer_write(&it->request, it->socket);
  if (state < 0) return fail(it, "cannot write");
  it->phase = WAITING_FOR_REPLY;
  watch(poller, EPOLL_CTL_MOD, it->socket, state ? EPOLLIN : EPOLLIN | EPOLLOUT, it);
}

static void dial(struct client *it) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(it->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int yes = 1;
  it->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(it->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  it->phase = CONNECTING;
  watch(poller, EPOLL_CTL_ADD, it->socket, EPOLLIN | EPOLLOUT, it);
  if (connect(it->socket, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) fail(it, "cannot connect");
}

static void begin(struct client *it, enum step step) {
  it->step = step;
  it->asked = now_us();
  if (step == (burst || single ? SEND : OPEN) && !it->postponed) it->wanted = it->wake; // not when it came to it: a slow server must not start the clock late
  reply_reset(&it->reply);
  build_request(it);
  it->socket_reused = it->socket >= 0;
  if (it->socket_reused) send_request(it);
  else dial(it);
}

// ---- events of a stream

static void note_token(struct client *it, const struct token *token, int64_t received) {
  int64_t late = latency_us(received, token->sent_us), sent = received - late;
  total.deltas++;
  if (it->replaying) return;
  if (!it->first_sent) {
    it->first_sent = sent;
    if (!it->reader) {
      histogram_add(&first_delta, received - it->wanted);
      histogram_add(&opening, sent - it->wanted);
    }
  }
  if (sent > it->last_sent) it->last_sent = sent;
  if (it->mirror) histogram_add(&mirror, late);
  else add_delta(sent - started, late);
}

static void take_delta(struct client *it, const char *data, size_t length, int64_t received) {
  struct token token;
  total.delta_events++;
  if (it->replaying) total.replay_events++;
  const char *text = text_of(data, length, dialect->keys);
  it->checks.block = json_number(data, length, "\"index\":");
  for (; text && text < data + length && *text != '"'; text++)
    if (checks_take(&it->checks, *text, &token)) note_token(it, &token, received);
}

static void dispatch(struct client *it, const char *data, size_t length, int64_t received) {
  if (it->resuming) histogram_add(&rejoin, received - it->asked);
  it->resuming = false;
  if (it->pending_id[0]) snprintf(it->last_id, sizeof it->last_id, "%s", it->pending_id);
  if (!it->event[0]) event_of_data(data, length, it->event, sizeof it->event);
  if (!strcmp(it->event, dialect->delta_event)) take_delta(it, data, length, received);
  else if (!strcmp(it->event, dialect->done_event)) it->turn_done = true;
  else if (!strcmp(it->event, "reset")) {
    total.resets++;
    checks_forget(&it->checks, json_number(data, length, "\"index\":"));
  }
}

static void copy_field(char *field, size_t room, const char *value, const char *end) {
  if (value < end && *value == ' ') value++;
  snprintf(field, room, "%.*s", (int)(end - value), value);
}

static void cut(struct client *it) {
  it->cuts_left--;
  it->cut_at = it->checks.distinct + 1 + (it->checks.expected - it->checks.distinct) * drand48() / (it->cuts_left + 1);
  it->resuming = true;
  total.resumes++;
  hang_up(it);
  rest(it, now_us() + (int64_t)(gap_ms * 1000 * drand48()), FOLLOW);
}

static bool want_to_cut(const struct client *it) {
  return it->cuts_left && !it->turn_done && it->checks.distinct >= it->cut_at;
}

static void take_events(struct client *it, int64_t received) {
  struct buffer *body = &it->reply.body;
  const char *data = NULL, *data_end = NULL, *line = body->data, *end = body->data + body->length, *newline, *taken = line;
  it->event[0] = it->pending_id[0] = 0;
  for (; line < end && (newline = memchr(line, '\n', end - line)); line = newline + 1) {
    const char *line_end = newline > line && newline[-1] == '\r' ? newline - 1 : newline;
    if (line_end == line) {
      if (data) dispatch(it, data, data_end - data, received);
      if (data && !strcmp(it->event, dialect->error_event)) return fail(it, "error event");
      data = NULL;
      it->event[0] = it->pending_id[0] = 0;
      taken = newline + 1;
      if (want_to_cut(it)) return cut(it);
    } else if (!strncmp(line, "data:", 5)) data = line + 5, data_end = line_end;
    else if (!strncmp(line, "event:", 6)) copy_field(it->event, sizeof it->event, line + 6, line_end);
    else if (!strncmp(line, "id:", 3)) copy_field(it->pending_id, sizeof it->pending_id, line + 3, line_end);
  }
  buffer_drop(body, taken - body->data);
}

// ---- what follows on a reply

static int64_t start_of(int place, int count) { return (place + drand48()) / count * ramp_seconds * 1000000; }

static void wake_readers(const struct client *of) {
  for (int i = chats; i < client_count; i++) {
    struct client *it = &clients[i];
    if (it->follows != of->number) continue;
    snprintf(it->url, sizeof it->url, "%s", of->url);
    rest(it, now_us() + (it->mirror ? 0 : start_of(i - chats, readers)), FOLLOW);
  }
}

static void opened_chat(struct client *it) {
  opened++;
  if (!burst) return begin(it, SEND);
  hang_up(it);
  rest(it, INT64_MAX, SEND);
  if (opened < chats) return;
  for (int i = 0; i < chats; i++) rest(&clients[i], now_us(), SEND);
}

static void ended_stream(struct client *it) {
  if (!it->turn_done && dialect->done_event[0]) return fail(it, "the stream ended before the turn");
  if (it->replaying) histogram_add(&replay, now_us() - it->asked);
  end_pass(it);
  if (it->replays_left) {
    it->replays_left--;
    it->replaying = true;
    it->turn_done = false;
    it->last_id[0] = 0;
    checks_restart(&it->checks);
    begin(it, FOLLOW);
  } else if (cuts) begin(it, ASK_AFTER_END);
  else succeed(it);
}

static void ended_document(struct client *it) {
  const char *body = it->reply.body.length ? it->reply.body.data : "";
  if (it->step == ASK_AFTER_END && it->reply.status == 204) {
    total.ended_204++;
    succeed(it);
  } else if (refusals && it->step == SEND && (it->reply.status == 429 || it->reply.status == 503)) refuse(it);
  else if (it->reply.status == 503 && it->reply.retry_after) postpone(it);
  else if (it->step == ASK_AFTER_END || it->step == FOLLOW || it->reply.status >= 300) fail(it, "unexpected answer");
  else if (it->step == OPEN) {
    json_string(body, dialect->chat_key, it->chat, sizeof it->chat);
    opened_chat(it);
  } else if (!json_string(body, "stream_url", it->url, sizeof it->url)) fail(it, "no stream_url");
  else {
    wake_readers(it);
    begin(it, FOLLOW);
  }
}

static void note_attached(struct client *it) {
  if (it->attached) return;
  it->attached = true;
  if (single) histogram_add(&accepted, now_us() - it->wanted);
  if (++attached < client_count) return;
  printf("{\"attached\":%d}\n", attached);
  fflush(stdout);
}

static void lost_connection(struct client *it) {
  bool stale = it->socket_reused && !it->reply.head_read; // the server closed an idle connection just now
  hang_up(it);
  if (stale) begin(it, it->step);
  else fail(it, "the connection was closed");
}

static void read_reply(struct client *it) {
  static char bytes[65536];
  ssize_t count = read(it->socket, bytes, sizeof bytes);
  if (count < 0 && errno == EAGAIN) return;
  if (count <= 0) return lost_connection(it);
  int64_t received = now_us();
  total.bytes += count;
  reply_feed(&it->reply, bytes, count);
  if (it->reply.event_stream && it->step != ASK_AFTER_END) {
    note_attached(it);
    take_events(it, received);
    if (it->phase != WAITING_FOR_REPLY) return;
  }
  if (!it->reply.complete) return;
  if (!it->reply.keep_alive) hang_up(it);
  if (it->reply.event_stream) ended_stream(it);
  else ended_document(it);
}

static void handle(struct client *it, uint32_t events) {
  if (it->phase == RESTING || it->phase == FINISHED) return;
  if (it->phase == CONNECTING && events & (EPOLLERR | EPOLLHUP)) return fail(it, "cannot connect");
  if (events & EPOLLOUT) send_request(it);
  if (it->phase == WAITING_FOR_REPLY && events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_reply(it);
}

// ---- the run

static void wake_due(int64_t now) {
  next_wake = INT64_MAX;
  for (int i = 0; i < client_count; i++) {
    struct client *it = &clients[i];
    if (it->phase != RESTING) continue;
    if (it->wake <= now) begin(it, it->step);
    else if (it->wake < next_wake) next_wake = it->wake;
  }
}

static void create_clients(void) {
  int expected = (plan_number(plan, "deltas", 20) + plan_number(plan, "thinking", 0)) * (plan_number(plan, "rounds", 0) + 1);
  client_count = chats + readers + (mirror_port ? chats : 0);
  clients = checked(calloc(client_count, sizeof *clients));
  started = now_us();
  for (int i = 0; i < client_count; i++) {
    struct client *it = &clients[i];
    it->socket = -1;
    it->number = i;
    it->reader = i >= chats;
    it->mirror = i >= chats + readers;
    it->follows = it->mirror ? i - chats - readers : it->reader ? 0 : i;
    it->port = it->mirror ? mirror_port : second_port && it->follows % 2 ? second_port : port;
    it->cuts_left = it->reader ? 0 : cuts;
    it->cut_at = 1 + expected * drand48() / (cuts + 1);
    it->replays_left = it->reader ? 0 : replays;
    checks_start(&it->checks, it->follows, expected);
    if (it->reader) rest(it, INT64_MAX, FOLLOW);
    else rest(it, started + (burst ? 0 : start_of(i, chats)), single ? SEND : OPEN);
  }
}

static void run_until(int64_t limit) {
  struct epoll_event events[512];
  while (finished < client_count && now_us() < limit) {
    int ready = wait_for_events(poller, events, 512, next_wake < limit ? next_wake : limit);
    for (int i = 0; i < ready; i++) handle(events[i].data.ptr, events[i].events);
    if (next_wake <= now_us()) wake_due(now_us());
  }
  for (int i = 0; i < client_count; i++)
    if (clients[i].phase != FINISHED) fail(&clients[i], "not finished in time");
}

// The time in which every chat was being sent deltas: nothing is still starting and nothing has ended.
static void find_steady(int64_t *from, int64_t *until) {
  *from = 0;
  *until = INT64_MAX;
  for (int i = 0; i < chats; i++) {
    int64_t first = clients[i].first_sent ? clients[i].first_sent - started : INT64_MAX;
    if (first > *from) *from = first;
    if (clients[i].last_sent - started < *until) *until = clients[i].last_sent - started;
  }
}

static void sum_up(void) {
  int64_t from, until;
  for (int i = 0; i < client_count; i++) {
    total.repeated += clients[i].checks.repeated;
    total.disordered += clients[i].checks.disordered;
    total.foreign += clients[i].checks.foreign;
  }
  find_steady(&from, &until);
  print_results((last_end - started) / 1e6, from, until);
}

static void read_credentials(const char *list) {
  char *rest = checked(strdup(list));
  do credentials[credential_count++] = strsep(&rest, ",");
  while (rest && credential_count < (int)(sizeof credentials / sizeof *credentials));
}

int main(int count, char **words) {
  signal(SIGPIPE, SIG_IGN);
  dialect = find_dialect(option(count, words, "--dialect", "turnstream"));
  port = atoi(option(count, words, "--port", "8000"));
  read_credentials(option(count, words, "--token", ""));
  second_port = atoi(option(count, words, "--second-port", "0"));
  mirror_port = atoi(option(count, words, "--mirror-port", "0"));
  chats = atoi(option(count, words, "--chats", "1"));
  snprintf(plan, sizeof plan, "plan %s", option(count, words, "--plan", "deltas=200 rate=50"));
  ramp_seconds = atof(option(count, words, "--ramp", "1"));
  burst = atoi(option(count, words, "--burst", "0"));
  single = atoi(option(count, words, "--single", "0"));
  refusals = atoi(option(count, words, "--refusals", "0"));
  readers = atoi(option(count, words, "--readers", "0"));
  cuts = atoi(option(count, words, "--cuts", "0"));
  gap_ms = atoi(option(count, words, "--gap-ms", "100"));
  replays = atoi(option(count, words, "--replays", "0"));
  srand48(atol(option(count, words, "--seed", "1")));
  next_wake = INT64_MAX;
  poller = epoll_create1(EPOLL_CLOEXEC);
  create_clients();
  run_until(started + (int64_t)(atof(option(count, words, "--limit", "60")) * 1e6));
  sum_up();
  return 0;
}
