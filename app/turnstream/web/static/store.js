// Values that this browser keeps for the owner between visits.

import { shelf } from './session.js'

export class Store {
  /** `name` names the kind of values. If there are more than `max` values, the oldest values, by `at`, are removed. */
  constructor(name, max = Infinity) {
    this.name = name
    this.max = max
    /** @type {Record<string, any>} values for which the browser has no room; they are lost with the page */
    this.spilled = {}
  }

  get(key) {
    const { storage, prefix } = this.#shelf
    return this.spilled[key] ?? JSON.parse(storage.getItem(prefix + key) ?? 'null')
  }

  put(key, value) {
    const { storage, prefix } = this.#shelf
    if (this.get(key) === null) this.#makeRoom()
    delete this.spilled[key]
    try {
      storage.setItem(prefix + key, JSON.stringify(value))
    } catch {
      this.spilled[key] = value
    }
  }

  remove(key) {
    const { storage, prefix } = this.#shelf
    delete this.spilled[key]
    storage.removeItem(prefix + key)
  }

  /** Returns all values, with their keys. */
  entries() {
    const { storage, prefix } = this.#shelf
    const stored = Object.keys(storage).filter((key) => key.startsWith(prefix))
    const keys = new Set([...stored.map((key) => key.slice(prefix.length)), ...Object.keys(this.spilled)])
    return [...keys].map((key) => /** @type {[string, any]} */ ([key, this.get(key)]))
  }

  #makeRoom() {
    if (this.max === Infinity) return
    const newestFirst = this.entries().sort(([, a], [, b]) => b.at - a.at)
    for (const [key] of newestFirst.slice(this.max - 1)) this.remove(key)
  }

  get #shelf() {
    const { storage, prefix } = shelf()
    return { storage, prefix: `${prefix}${this.name}.` }
  }
}
