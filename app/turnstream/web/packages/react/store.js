// The state that a hook returns. It is kept up to date as long as it has listeners.

import { isPassing, pause } from '@turnstream/client'

/** @template State */
export class Store {
  /** @type {Set<() => void>} */
  #listeners = new Set()
  /** @type {AbortController | null} */
  #ending = null
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer

  /** @param {State} state */
  constructor(state) {
    this.state = state
    this.shown = state
    this.initial = state
  }

  /**
   * Follows the server from the first listener on, and until shortly after the last one: in StrictMode a component leaves
   * and comes back at once.
   * @param {() => void} listener
   */
  subscribe = (listener) => {
    this.#listeners.add(listener)
    if (!this.#ending) this.#start((this.#ending = new AbortController()).signal)
    return () => {
      this.#listeners.delete(listener)
      setTimeout(() => {
        if (this.#listeners.size) return
        this.#ending?.abort()
        this.#ending = null
        this.left()
      })
    }
  }

  get following() {
    return this.#ending !== null
  }

  /** Called when no listener is left. */
  left() {}

  snapshot = () => this.shown

  /** What was rendered on the server, and is there when the page is hydrated. */
  serverSnapshot = () => this.initial

  /** Changes members of the state. All changes until the listeners are called are one for them. @param {Partial<State>} part */
  change(part) {
    this.state = { ...this.state, ...part }
    this.#timer ??= setTimeout(() => this.flush())
  }

  flush() {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.shown = this.state
    for (const listener of this.#listeners) listener()
  }

  /**
   * Follows the server until `signal` is aborted. Throws Refused.
   * @param {AbortSignal} _signal @returns {Promise<void>}
   */
  async follow(_signal) {}

  /** @param {AbortSignal} signal */
  async #start(signal) {
    try {
      await this.follow(signal)
    } catch (error) {
      if (!signal.aborted) this.change(/** @type {any} */ ({ status: 'failed', error }))
    }
  }

  /**
   * Reads until the server answers. Throws Refused.
   * @param {import('@turnstream/client').Client} client @param {string} path @param {AbortSignal} [signal]
   */
  async read(client, path, signal) {
    for (let tries = 0; ; tries++) {
      try {
        const answer = await client.request('GET', path, undefined, { signal })
        this.change(/** @type {any} */ ({ connection: 'open' }))
        return answer
      } catch (error) {
        if (signal?.aborted || !isPassing(error)) throw error
        this.change(/** @type {any} */ ({ connection: 'lost' }))
        await pause(tries, signal, error)
      }
    }
  }
}
