// Streams that are followed while the page is visible. A browser opens six connections to one HTTP/1.1 server, for all
// tabs together. So a hidden tab holds no connection, and continues from its cursor when it is visible again.

import { isStale } from './turnstream.js'

const GRACE = 1_000 // milliseconds for which a hidden tab keeps its connection
const OVERLAP = 1_000 // milliseconds for which both tabs read the feed when one tab takes it over

export class Subscription {
  /**
   * `open(options)` returns the events after a cursor, and `receive` is called with each event. `connection` is called
   * with 'open' and 'lost', and `failed` with the error that ended the stream. `stale` is called instead of `failed` if
   * the server refused the cursor of an event, so that everything must be read again. If `stays` returns true, a hidden
   * tab keeps its connection.
   */
  constructor(client, { open, receive, failed, stale = failed, connection = (_state) => {}, stays = () => false }) {
    this.client = client
    this.open = open
    this.receive = receive
    this.failed = failed
    this.stale = stale
    this.connection = connection
    this.stays = stays
    this.cursor = null
    this.started = false
    this.ending = new AbortController()
    document.addEventListener('visibilitychange', () => this.#adapt())
    addEventListener('focus', () => this.#adapt())
  }

  start(cursor) {
    this.stop()
    this.cursor = cursor
    this.fresh = cursor
    this.started = true
    this.#adapt()
  }

  stop() {
    this.started = false
    this.ending.abort()
  }

  #adapt() {
    clearTimeout(this.timer)
    if (document.hidden && !this.stays()) this.timer = setTimeout(() => this.ending.abort(), GRACE)
    else if (this.started && this.ending.signal.aborted) this.run()
  }

  /** @returns {Promise<void>} */
  async run() {
    this.ending.abort()
    this.ending = new AbortController()
    const { signal } = this.ending
    const connection = (state) => signal.aborted || this.connection(state)
    try {
      for await (const event of this.open({ cursor: this.cursor, signal, connection })) {
        if (signal.aborted) return
        if (event.id) this.cursor = event.id
        this.receive(event)
      }
      this.stop()
    } catch (error) {
      if (signal.aborted) return
      if (error.status === 401) return await this.#renew(signal)
      this.stop()
      if (isStale(error) && this.cursor !== this.fresh) this.stale(error)
      else this.failed(error)
    }
  }

  /** Makes another request, which asks the person for a token until the server accepts it, and then follows again. */
  async #renew(signal) {
    try {
      await this.client.insist('GET', '/api/chats?limit=1')
      if (!signal.aborted) this.run()
    } catch (error) {
      this.failed(error)
    }
  }
}

/**
 * The owner's feed. The tab that was visible last reads the feed, and passes its events on to the other tabs of this
 * browser. Each tab keeps the cursor of its own connection, so a tab that takes over may repeat events, but misses
 * none.
 */
export class FeedSubscription extends Subscription {
  constructor(client, { receive, failed, stays }) {
    const pass = (event) => {
      receive(event)
      this.channel?.postMessage(event)
    }
    super(client, { open: (options) => client.feed(options), receive: pass, failed, stays })
    this.take = receive
  }

  async run() {
    const running = super.run()
    const { ending } = this
    const name = `turnstream.feed ${this.client.token() ?? ''}` // tabs with another token may belong to another owner
    if (this.channel?.name !== name) this.#join(name)
    const aborted = new Promise((resolve) => ending.signal.addEventListener('abort', resolve))
    // A page outside a secure context has no locks: there, each visible tab reads the feed itself. If another tab
    // steals the lock, the promise is rejected, and this tab reads for a moment longer, so that events on their way
    // still arrive.
    navigator.locks
      ?.request(name, { steal: true }, () => aborted)
      .catch(() => setTimeout(() => ending.abort(), OVERLAP))
    await running
  }

  #join(name) {
    this.channel?.close()
    this.channel = new BroadcastChannel(name)
    this.channel.addEventListener('message', ({ data }) => this.take(data))
  }
}
