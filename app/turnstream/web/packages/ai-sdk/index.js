// A transport for the AI SDK's useChat. app/turnstream/web/packages/README.md explains it.

import { DefaultChatTransport } from 'ai'
import { isPassing, pause } from '@turnstream/client'

/** @typedef {(chatId: string) => string | Promise<string>} IdOf */

/** @import { ChatTransport, HttpChatTransportInitOptions, UIMessage, UIMessageChunk } from 'ai' */

const MAX_TRIES = 7
const LAST = new Set(['finish', 'error'])
const PASSING = new Set([502, 503, 504]) // the server is not ready, or a proxy cannot reach it

/**
 * Comes back after a cut, behind the steps that the page has; sends the last message alone; stops the answer when the page
 * stops.
 * @template {UIMessage} [Message=UIMessage]
 * @extends {DefaultChatTransport<Message>}
 */
export class TurnstreamChatTransport extends DefaultChatTransport {
  /** @type {Map<string, AbortSignal | undefined>} the signal of the last request of each chat */
  #requested = new Map()

  /**
   * @param {HttpChatTransportInitOptions<Message> & {stopOnAbort?: boolean, idOf?: IdOf}} [options] those of
   *   DefaultChatTransport; `stopOnAbort`: false lets an answer go on when the page stops; `idOf` returns the id of a chat on
   *   the server, where the page has another one
   */
  constructor({ api = '/api/ai-sdk/chat', stopOnAbort = true, idOf = (id) => id, ...options } = {}) {
    super({
      prepareSendMessagesRequest: lastMessageAlone,
      prepareReconnectToStreamRequest: ofTurn,
      ...options,
      api,
      // Bypasses the cache, in which Firefox lets the streams of two tabs wait for each other.
      fetch: (url, init) => (options.fetch ?? fetch)(url, { ...init, cache: 'no-store' }),
    })
    this.stopOnAbort = stopOnAbort
    this.idOf = idOf
  }

  /** @type {ChatTransport<Message>['sendMessages']} */
  async sendMessages(options) {
    const last = options.messages.at(-1)
    const continued = options.trigger === 'submit-message' && last?.role === 'assistant'
    const steps = continued ? last.parts.filter(({ type }) => type === 'step-start').length : 0
    this.#watch(options)
    // A retry is safe: the server stores the same message once, however often it is sent.
    const stream = await insist(
      async () => super.sendMessages({ ...options, chatId: await this.idOf(options.chatId) }),
      options.abortSignal,
      MAX_TRIES,
    )
    return streamOf(this.#chunks(stream, options, steps))
  }

  /** @type {ChatTransport<Message>['reconnectToStream']} */
  async reconnectToStream(options) {
    this.#watch(options)
    const stream = await insist(() => this.#reconnect(options), options.abortSignal, MAX_TRIES)
    return stream && streamOf(this.#chunks(stream, options, 0))
  }

  /**
   * Cancels the answer of a chat.
   * @param {{chatId: string, headers?: HeadersInit}} options
   */
  async stop({ chatId, headers }) {
    const own = new Headers(await valueOf(this.headers))
    new Headers(headers).forEach((value, name) => own.set(name, value))
    const credentials = await valueOf(this.credentials)
    const url = `${this.api}/${encodeURIComponent(await this.idOf(chatId))}/stop`
    await /** @type {typeof fetch} */ (this.fetch)(url, { method: 'POST', headers: own, credentials })
  }

  /**
   * Yields the chunks of an answer, over as many connections as it takes. A new connection sends the whole answer: the
   * steps before the interrupted step are left out, and the interrupted step begins again.
   * @param {ReadableStream<UIMessageChunk>} stream
   * @param {Parameters<ChatTransport<Message>['reconnectToStream']>[0]} options
   * @param {number} steps the number of steps that the message has
   * @returns {AsyncGenerator<UIMessageChunk, void>}
   */
  async *#chunks(stream, options, steps) {
    const { chatId, abortSignal: signal } = options
    /** @type {string | undefined} */
    let turn
    let missing = 0 // steps that this connection repeats and the page already has
    for (let tries = 0; ; tries++) {
      try {
        for await (const chunk of read(stream)) {
          const { type } = chunk
          if (type === 'start') turn = chunk.messageId ?? turn
          if (missing) {
            const reached = type === 'start-step' && --missing === 0
            if (reached || LAST.has(type)) yield { type: 'reset-step' }
            if (!LAST.has(type)) continue
          } else if (type === 'start-step') steps++
          tries = 0
          if (LAST.has(type) && this.#requested.get(chatId) === signal) this.#requested.delete(chatId)
          yield chunk
          if (LAST.has(type)) return
        }
      } catch (error) {
        if (signal?.aborted || !isPassing(error)) throw error
      }
      await pause(tries, signal)
      const metadata = { .../** @type {object} */ (options.metadata), turn }
      const next = await insist(() => this.#reconnect({ ...options, metadata }), signal)
      if (!next) return
      stream = next
      missing = steps
    }
  }

  async #reconnect(/** @type {Parameters<ChatTransport<Message>['reconnectToStream']>[0]} */ options) {
    return super.reconnectToStream({ ...options, chatId: await this.idOf(options.chatId) })
  }

  /** Stops the answer when the request is aborted, unless a newer request of the chat has replaced it. */
  #watch(/** @type {{chatId: string, abortSignal?: AbortSignal, headers?: any}} */ options) {
    const { chatId, abortSignal: signal } = options
    this.#requested.set(chatId, signal)
    signal?.addEventListener('abort', () =>
      setTimeout(() => {
        if (this.#requested.get(chatId) !== signal) return
        this.#requested.delete(chatId)
        if (this.stopOnAbort) this.stop(options).catch(() => {})
      }),
    )
  }
}

/**
 * Sends a request until the server answers, at most `most` times. Throws an error that a retry cannot help.
 * @template Answer
 * @param {() => Promise<Answer>} request @param {AbortSignal} [signal] @param {number} [most]
 */
async function insist(request, signal, most = Infinity) {
  for (let tries = 1; ; tries++) {
    try {
      return await request()
    } catch (error) {
      const passes = isPassing(error) || PASSING.has(/** @type {any} */ (error).statusCode)
      if (signal?.aborted || tries === most || !passes) throw error
    }
    await pause(tries - 1, signal)
  }
}

/** Sends the last message alone, because the server has the messages before it. @type {HttpChatTransportInitOptions<any>['prepareSendMessagesRequest']} */
const lastMessageAlone = ({ id, messages, trigger, messageId, body }) =>
  trigger === 'submit-message' && !messageId
    ? { body: { ...body, id, message: messages.at(-1) } }
    : { body: { ...body, id, messages, trigger, messageId } }

/** Asks for one answer, even if the answer has ended meanwhile. @type {HttpChatTransportInitOptions<any>['prepareReconnectToStreamRequest']} */
const ofTurn = ({ api, id, requestMetadata }) => {
  const { turn } = /** @type {{turn?: string}} */ (requestMetadata ?? {})
  return turn ? { api: `${api}/${encodeURIComponent(id)}/stream?turn=${turn}` } : {}
}

/** @param {any} option a value, or a function that returns one */
const valueOf = (option) => (typeof option === 'function' ? option() : option)

/** @template Item @param {ReadableStream<Item>} stream */
async function* read(stream) {
  const reader = stream.getReader()
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return
      yield value
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}

/** @template Item @param {AsyncGenerator<Item, void>} items @returns {ReadableStream<Item>} */
function streamOf(items) {
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await items.next()
      if (done) controller.close()
      else controller.enqueue(/** @type {Item} */ (value))
    },
    async cancel() {
      await items.return()
    },
  })
}
