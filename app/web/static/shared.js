/* eslint-disable */
// @ts-nocheck
// The connection that all tabs of this browser share, where there are shared workers: see turnstream-worker.js.

import { Refused } from './turnstream.js'

// In milliseconds: for a worker to begin, and between two words of it, which says something every 20 s.
const PATIENCE = 5_000
const SILENCE = 70_000
const ALONE = 60_000 // for so long a tab has a connection of its own where the shared one cannot be had

// A server without that call, and an address with too many cursors in it.
const NOT_SHARED = [404, 405, 414, 431]

export class SharedLine {
  /** Null where this browser has no such workers, or does not let pages have them. */
  static open() {
    try {
      return globalThis.SharedWorker ? new SharedLine() : null
    } catch {
      return null
    }
  }

  constructor() {
    const place = new URL('turnstream-worker.js', import.meta.url).href
    const policy = globalThis.trustedTypes?.createPolicy('turnstream', { createScriptURL: () => place })
    this.worker = new SharedWorker(policy?.createScriptURL('') ?? place, { type: 'module', name: 'turnstream' })
    this.worker.addEventListener('error', () => this.#giveUp('the shared worker has failed', Infinity))
    this.unanswered = new Set()
    this.held = hold()
    this.brokenUntil = 0
  }

  get broken() {
    return Date.now() < this.brokenUntil
  }

  /** The events of a chat, to the end of the connection. Throws what a connection of one's own would. */
  async *follow(chat, token, { cursor, signal, connection }) {
    const held = await this.held
    const { port1: here, port2: there } = new MessageChannel()
    const inbox = new Inbox(here, signal)
    const leave = () => {
      here.postMessage('leave')
      inbox.take({ end: {} }) // a page that is shown again comes back
    }
    addEventListener('pagehide', leave)
    this.unanswered.add(inbox)
    this.worker.port.postMessage({ chat, cursor, token, held }, [there])
    let late = setTimeout(() => this.#giveUp('the shared worker does not answer'), PATIENCE)
    try {
      for (;;) {
        const { event, open, end } = await inbox.next()
        clearTimeout(late)
        late = setTimeout(() => inbox.take({ end: { message: 'the shared worker is silent' } }), SILENCE)
        this.unanswered.delete(inbox)
        if (event) yield event
        if (open) connection('open')
        if (end) return this.#finish(end)
      }
    } finally {
      clearTimeout(late)
      this.unanswered.delete(inbox)
      removeEventListener('pagehide', leave)
      here.postMessage('leave')
      here.close()
    }
  }

  /** For a while this tab has connections of its own. */
  #giveUp(message, pause = ALONE) {
    this.brokenUntil = Date.now() + pause
    for (const inbox of this.unanswered) inbox.take({ end: { message } })
  }

  #finish({ status, message, full }) {
    if (full || NOT_SHARED.includes(status)) this.#giveUp(message)
    else if (status) throw new Refused(status, { detail: message })
    if (message) throw new TypeError(message)
  }
}

/** What has come and was not read yet. */
class Inbox {
  #messages = []
  #ring = null

  constructor(port, signal) {
    this.signal = signal
    port.onmessage = ({ data }) => this.take(data)
    signal?.addEventListener('abort', () => this.#ring?.(), { once: true })
  }

  take(message) {
    this.#messages.push(message)
    this.#ring?.()
  }

  async next() {
    while (!this.#messages.length && !this.signal?.aborted) await new Promise((resolve) => (this.#ring = resolve))
    this.signal?.throwIfAborted()
    return this.#messages.shift()
  }
}

/** A lock that is held for as long as this page lives, by which the worker sees when it is gone. Null without locks. */
function hold() {
  if (!navigator.locks) return null
  const name = `turnstream ${crypto.randomUUID()}`
  return new Promise((resolve) => navigator.locks.request(name, () => (resolve(name), new Promise(() => {}))))
}
