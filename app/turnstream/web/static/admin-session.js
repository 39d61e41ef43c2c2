// The client of the page for operators. It uses the token of the chat page if that token has the scope, or else a token
// of its own.

import { find } from './dom.js'
import { offerSignIn } from './sign-in.js'
import { Client, Refused } from './turnstream.js'

const BASE = import.meta.url.split('/static/')[0]
const KEY = 'turnstream.operator'

const NONE = 'This page needs a token with the scope “admin”: turnstream tokens create NAME --scope admin'

const stored = (key) => sessionStorage.getItem(key) ?? localStorage.getItem(key)
const storedToken = () => stored(KEY) ?? stored('turnstream.token')

export class Operator extends Client {
  constructor() {
    super({ base: BASE, token: storedToken })
  }

  /** @param {Parameters<Client['request']>} call */
  async request(...call) {
    for (;;) {
      try {
        return await super.request(...call)
      } catch (error) {
        if (!(error instanceof Refused) || ![401, 403].includes(error.status)) throw error
        await this.askForToken(error.message)
      }
    }
  }

  /** Resolves when another token is stored. Opens one dialog, however many requests were refused. */
  askForToken(reason) {
    this.asking ??= new Promise((resolve) => {
      const dialog = find('#ask-token')
      find('#why-token').textContent = storedToken() ? reason : NONE
      offerSignIn(BASE, 'admin', forgetTokens)
      // If Escape closes the dialog without a token, the dialog opens again.
      const close = () => (storeToken(dialog) ? resolve(true) : ask())
      const ask = () => {
        dialog.addEventListener('close', close, { once: true })
        dialog.showModal()
      }
      ask()
    }).finally(() => (this.asking = null))
    return this.asking
  }
}

function forgetTokens() {
  for (const key of [KEY, 'turnstream.token'])
    for (const storage of [sessionStorage, localStorage]) storage.removeItem(key)
}

function storeToken(dialog) {
  const { token, remember } = find('form', dialog).elements
  const value = token.value.trim()
  if (!value) return false
  sessionStorage.removeItem(KEY)
  localStorage.removeItem(KEY)
  const storage = remember.checked ? localStorage : sessionStorage
  storage.setItem(KEY, value)
  token.value = ''
  return true
}
