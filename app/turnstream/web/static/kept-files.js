// Keeps in this browser the files of unsent messages, and copies: the last path of each chat, and the list of chats.

import { shelf } from './session.js'

const MAX_BYTES = 50_000_000 // of all files together: above it, copies are forgotten first, then the oldest files
const MAX_AGE = 7 * 24 * 3_600_000 // milliseconds

/** The names under which the files of a draft, or of an unsent message, are kept. */
export const draftOf = (chat) => `draft ${chat ?? 'new'}`
export const unsentOf = (key) => `unsent ${key}`
/** The name under which the last path of a chat is kept. */
export const pathOf = (chat) => `path ${chat}`
/** The name under which the list of chats is kept. */
export const LIST = 'list'

export class KeptFiles {
  /** @type {Promise<IDBDatabase> | undefined} */
  #opening

  constructor() {
    addEventListener('carriedover', (event) => this.#carryOver(.../** @type {CustomEvent} */ (event).detail))
    addEventListener('forgetcopies', (event) => this.#forgetCopies(/** @type {CustomEvent} */ (event).detail))
  }

  /**
   * Returns the files of a message, in the order in which they were attached, each with its `id`. Returns none if the
   * browser has no database, or if the token ends with the tab, because a database would outlive the tab.
   */
  async of(message) {
    const { storage, prefix } = shelf()
    if (storage === sessionStorage) return []
    const all = (await this.#run('readonly', (store) => store.getAll())) ?? []
    const own = all.filter((one) => one.owner === prefix && one.message === message && !isOld(one))
    return own.sort((a, b) => a.at - b.at)
  }

  /** Keeps a file, or assigns a kept file to another message. */
  async keep(id, message, file) {
    const { storage, prefix } = shelf()
    if (storage === sessionStorage || file.size > MAX_BYTES) return
    const at = performance.timeOrigin + performance.now() // precise: files that are attached together keep their order
    await this.#run('readwrite', (store) => store.put({ id, owner: prefix, message, file, at }))
    await this.#forgetOld()
  }

  remove(id) {
    return this.#run('readwrite', (store) => store.delete(id))
  }

  /** Removes the files that still belong to a message. */
  forget(message) {
    return this.#forEach((cursor) => cursor.value.message === message && cursor.delete())
  }

  /** Removes everything that belongs to an owner. */
  clear(prefix) {
    return this.#forEach((cursor) => cursor.value.owner === prefix && cursor.delete())
  }

  #carryOver(before, after) {
    return this.#forEach((cursor) => {
      if (cursor.value.owner !== before.prefix) return
      if (after.storage === sessionStorage || isCopy(cursor.value))
        cursor.delete() // the new token may be another owner's
      else cursor.update({ ...cursor.value, owner: after.prefix })
    })
  }

  #forgetCopies(prefix) {
    return this.#forEach((cursor) => cursor.value.owner === prefix && isCopy(cursor.value) && cursor.delete())
  }

  async #forgetOld() {
    const all = (await this.#run('readonly', (store) => store.getAll())) ?? []
    let bytes = 0
    const old = all
      .sort((a, b) => isCopy(a) - isCopy(b) || b.at - a.at)
      .filter((one) => (bytes += one.file.size) > MAX_BYTES || isOld(one))
    const isLeft = (one) => old.some(({ id, at }) => id === one.id && at === one.at)
    if (old.length) await this.#forEach((cursor) => isLeft(cursor.value) && cursor.delete())
  }

  /**
   * Calls `work` with a cursor at each file, in one transaction, so that a file that moved to another message is safe.
   */
  #forEach(work) {
    return this.#run('readwrite', (store) => {
      const cursors = store.openCursor()
      cursors.addEventListener('success', () => {
        const cursor = cursors.result
        if (cursor) work(cursor)
        cursor?.continue()
      })
      return cursors
    })
  }

  /** Resolves to the result of the request that `work` makes, once it is stored, or to null if the database fails. */
  async #run(mode, work) {
    try {
      const transaction = (await this.#open()).transaction('files', mode)
      const request = work(transaction.objectStore('files'))
      return await new Promise((resolve, reject) => {
        transaction.addEventListener('complete', () => resolve(request.result))
        transaction.addEventListener('abort', () => reject(transaction.error))
      })
    } catch {
      return null
    }
  }

  #open() {
    this.#opening ??= new Promise((resolve, reject) => {
      const request = indexedDB.open('turnstream', 1)
      request.addEventListener('upgradeneeded', () => request.result.createObjectStore('files', { keyPath: 'id' }))
      request.addEventListener('success', () => resolve(request.result))
      request.addEventListener('error', () => reject(request.error))
    })
    return this.#opening
  }
}

const isOld = ({ at }) => at < Date.now() - MAX_AGE
const isCopy = ({ message }) => Number(message === LIST || message.startsWith(pathOf('')))
