// React hooks for chats of turnstream. app/turnstream/web/packages/README.md explains them.

import { use, useCallback, useMemo, useState, useSyncExternalStore } from 'react'
import { hasEnded } from '@turnstream/client'
import { chatStore } from './chat.js'
import { FeedStore } from './feed.js'
import { Store } from './store.js'

/** @import { AnswerOptions, Client, Decision, Exchange, MessageOptions, Turn } from '@turnstream/client' */
/** @import { ChatState, Page } from './chat.js' */
/** @import { FeedState } from './feed.js' */

/** @type {Store<ChatState>} */
const NO_CHAT = new Store({
  status: 'ready',
  chat: null,
  turns: [],
  next: null,
  notice: null,
  connection: 'open',
  error: null,
})

/**
 * A chat, and what can be done with it. With null as `id` it begins with the first message.
 * @param {Client} client the same at each rendering
 * @param {string | null} id
 * @param {object} [options]
 * @param {Page} [options.page] of the turns, as it was read on the server
 * @param {boolean} [options.suspense] suspends the component until there are turns to show
 */
export function useChat(client, id, { page, suspense = false } = {}) {
  const [begun, setBegun] = useState(/** @type {string | null} */ (null))
  if (id && begun) setBegun(null) // the page now passes the id of the new chat
  const open = id ?? begun
  const store = open ? chatStore(client, open, page) : null
  /** @type {Store<ChatState>} */
  const shown = store ?? NO_CHAT
  const state = useSyncExternalStore(shown.subscribe, shown.snapshot, shown.serverSnapshot)
  if (store && suspense && state.status === 'loading') use(store.loaded())
  /** @type {Turn | null} */
  const running = state.turns.find((turn) => turn.role === 'assistant' && !hasEnded(turn)) ?? null

  const actions = useMemo(
    () => ({
      /**
       * Sends a message. `options` are members of its body: `model`, `tools`, `on_busy`, …
       * @param {string} text @param {MessageOptions} [options] @returns {Promise<Exchange>}
       */
      async send(text, options) {
        const exchange = await client.say(open, text, options)
        setBegun(exchange.assistant_turn.chat_id)
        return exchange
      },
      /** Sends another text in place of a message. @param {Turn} turn @param {string} text @returns {Promise<Exchange>} */
      edit: (turn, text) => client.say(turn.chat_id, text, { parent_id: turn.parent_id, on_busy: 'branch' }),
      /**
       * Generates another answer.
       * @param {Turn} turn @param {AnswerOptions} [options] @returns {Promise<Exchange>}
       */
      regenerate: (turn, options) => client.regenerate(turn.chat_id, turn.id, options),
      /** Answers calls that wait. @param {Turn} turn @param {Decision[]} decisions */
      act: (turn, decisions) => client.act(turn.chat_id, turn.id, decisions),
    }),
    [client, open],
  )
  const stop = useCallback(
    async () => void (running && (await client.cancel(running.chat_id, running.id))),
    [client, running?.id],
  )
  const readOlder = useCallback(async () => store?.readOlder(), [store])
  return { ...state, id: open, running, ...actions, stop, readOlder }
}

/**
 * The chats of the owner: the newest first, each with what its answers do.
 * @param {Client} client the same at each rendering @returns {FeedState}
 */
export function useFeed(client) {
  const store = useMemo(() => new FeedStore(client), [client])
  return useSyncExternalStore(store.subscribe, store.snapshot, store.serverSnapshot)
}
