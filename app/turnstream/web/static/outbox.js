// The unsent messages. Each message is stored in this browser until the server has answered, and is sent again after a
// lost network or a reload, with the same Idempotency-Key and body, so that it arrives once. This module does not use
// the page.

import { PAGE_TOOLS } from './asks.js'
import { unsentOf } from './kept-files.js'
import { Store } from './store.js'
import { TEXTS } from './texts.js'
import { isPassing, newKey, pause } from './turnstream.js'

const { unsent: texts } = TEXTS

/**
 * @typedef {object} Entry an unsent message
 * @property {string} key its Idempotency-Key
 * @property {number} at milliseconds: the order in which messages of a chat are sent
 * @property {string | null} chat null: the message begins a chat
 * @property {string} text
 * @property {any[]} files blocks
 * @property {string[]} missing names of files that are not uploaded yet
 * @property {Record<string, any>} options members of the request besides its blocks
 * @property {string} [reason] why the message was refused: it and the later messages then wait for the person
 * @property {boolean} [away] the server could not be reached
 */

export class Outbox extends EventTarget {
  /**
   * Fires `changed`, and `sent` with an entry and the exchange that the message has created. `kept` has the files that
   * this browser keeps. `upload` begins to upload a file, and returns an attachment.
   */
  constructor(client, kept, upload) {
    super()
    this.client = client
    this.kept = kept
    this.upload = upload
    this.store = new Store('unsent')
    /** @type {Map<string, any[]>} the attachments of entries that were written on this page */
    this.attachments = new Map()
    this.queue = Promise.resolve()
    addEventListener('storage', () => this.#emit('changed')) // another tab has written or sent a message
    addEventListener('online', () => this.resume()) // and that tab may have been closed since
  }

  /** Calls `listener` with the details of each event of a type. */
  on(type, listener) {
    this.addEventListener(type, (event) => listener(.../** @type {CustomEvent} */ (event).detail))
  }

  /** The unsent messages of a chat, oldest first. @param {string | null} chat @returns {Entry[]} */
  of(chat) {
    return this.#all().filter((entry) => entry.chat === chat)
  }

  /**
   * Sends a message to a chat, or to a new chat for null. `attachments` are uploaded, or are being uploaded. `options`
   * are members of the request. If they name no parent turn, it follows from the unsent message before this message.
   */
  add(chat, text, attachments, options) {
    const at = Math.max(Date.now(), ...this.#all().map((entry) => entry.at + 1))
    const entry = { key: newKey(), at, chat, text, options, ...filesOf(attachments) }
    this.attachments.set(entry.key, attachments)
    for (const { id, file } of attachments) if (file) this.kept.keep(id, unsentOf(entry.key), file)
    this.#put(entry)
    this.#send(chat)
  }

  /** Withdraws an unsent message. Returns its attachments; those of an earlier visit are blocks only. @param {Entry} entry */
  remove(entry) {
    const attachments = this.attachments.get(entry.key) ?? entry.files.map((block) => ({ block }))
    this.#drop(entry.key)
    this.#send(entry.chat)
    return attachments
  }

  /** Sends a refused message again, without the files that can no longer be uploaded. @param {Entry} entry */
  retry(entry) {
    const attachments = this.attachments.get(entry.key)
    for (const one of attachments ?? []) one.removed ||= Boolean(one.refused)
    this.#put({ ...entry, ...(attachments ? filesOf(attachments) : { missing: [] }), reason: undefined })
    this.#send(entry.chat)
  }

  /** Sends the messages of earlier visits, with their files as far as the browser has kept them. */
  async resume() {
    for (const { key, files, missing } of this.#all().filter((entry) => entry.missing.length)) {
      const kept = await this.kept.of(unsentOf(key))
      if (this.attachments.has(key) || kept.length !== files.length + missing.length) continue
      this.attachments.set(
        key,
        kept.map(({ id, file }) => this.upload(file, id)),
      )
      this.#emit('changed')
    }
    for (const chat of new Set(this.#all().map((entry) => entry.chat))) this.#send(chat)
  }

  /** Sends the messages of a chat, one after the other. If there are several tabs, only one tab sends them. */
  #send(chat) {
    const work = async () => {
      for (let entry = this.of(chat)[0]; entry && !entry.reason; entry = this.of(chat)[0])
        await this.#deliver(entry.key)
    }
    // A page outside a secure context has no locks: there, only the keys prevent a message from arriving twice.
    if (navigator.locks) navigator.locks.request(`${this.store.name} ${chat}`, work)
    else this.queue = this.queue.then(work)
  }

  /** Sends a message until the server answers, or the message is taken back. */
  async #deliver(key) {
    for (let tries = 0, entry; (entry = this.store.get(key)); tries++) {
      try {
        entry = await this.#complete(entry)
        if (!entry) return
        const { chat, text, files, options } = entry
        const blocks = [...files, ...(text ? [{ type: 'text', text }] : [])]
        const path = chat ? `/api/chats/${chat}/turns` : '/api/turns'
        return this.#arrived(entry, await this.client.request('POST', path, { ...options, blocks }, { key }))
      } catch (error) {
        if (error.status === 404 && entry.chat) return this.#drop(key) // the chat was deleted, with all that was in it
        if (!isPassing(error)) return this.#change(key, { reason: error.message, away: false })
      }
      this.#change(key, { away: true })
      await pause(tries)
    }
  }

  /**
   * Returns the entry with its files and tools, stored before the first try to send it. Returns null if nothing is left
   * to send.
   */
  async #complete(/** @type {Entry} */ entry) {
    const attachments = this.attachments.get(entry.key)
    if (entry.missing.length && !attachments) throw new Error(texts.missing(entry.missing.join(', ')))
    await Promise.all((attachments ?? []).map((one) => one.uploaded))
    const { options } = entry
    const complete = { ...entry, ...(attachments && filesOf(attachments)) }
    if (!entry.chat && !options.tools && !options.chat.settings?.tools)
      complete.options = { ...options, tools: await this.#tools() }
    const refused = attachments?.find((one) => one.refused)
    if (refused) throw new Error(refused.refused)
    if (!this.store.get(entry.key)) return null // withdrawn meanwhile
    if (!complete.text && !complete.files.length) return this.#drop(entry.key)
    this.#put(complete)
    return complete
  }

  /** Returns the tools of the server and of this page. The first turn of a chat declares them for the chat. */
  async #tools() {
    const { tools } = await this.client.request('GET', '/api/tools')
    return [...tools.map((tool) => tool.name), ...PAGE_TOOLS]
  }

  /** Removes a sent message. The next message of the chat follows the answer to it. */
  #arrived(entry, exchange) {
    const { id, chat_id } = exchange.assistant_turn
    const next = this.of(entry.chat).filter((other) => other.key !== entry.key)
    for (const [place, other] of next.entries()) {
      const options = { on_busy: other.options.on_busy, ...(place === 0 && { parent_id: id }) }
      this.store.put(other.key, { ...other, chat: chat_id, options })
    }
    this.#drop(entry.key)
    this.#emit('sent', entry, exchange)
    if (!entry.chat) this.#send(chat_id)
  }

  /** @returns {Entry[]} */
  #all() {
    const entries = this.store.entries().map(([, entry]) => entry)
    return entries.sort((a, b) => a.at - b.at)
  }

  #change(key, changes) {
    const entry = this.store.get(key)
    if (entry) this.#put({ ...entry, ...changes })
  }

  #put(entry) {
    this.store.put(entry.key, entry)
    this.#emit('changed')
  }

  /** @returns {null} */
  #drop(key) {
    this.store.remove(key)
    this.attachments.delete(key)
    this.kept.forget(unsentOf(key))
    this.#emit('changed')
    return null
  }

  #emit(type, ...detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }))
  }
}

/** Returns what an entry stores about attachments: the blocks of uploaded files, and the names of all other files. */
function filesOf(attachments) {
  const left = attachments.filter((one) => !one.removed)
  return {
    files: left.filter((one) => one.block).map((one) => one.block),
    missing: left.filter((one) => !one.block).map((one) => one.name),
  }
}
