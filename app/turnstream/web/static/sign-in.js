// Sign-in at an issuer: the links to issuers, the name of the signed-in person, and the button to sign out.

import { find, h, setText } from './dom.js'
import { TEXTS } from './texts.js'

/** Returns a digest that names the owner in the storage of this browser, as long as there is a session. */
export const signedIn = () => /(?:^|; )(?:__Host-)?turnstream_signed_in=(\w+)/.exec(document.cookie)?.[1]

/**
 * Adds links to the issuers of the server to the dialog that asks for a token. `to` is the place that is shown after
 * the login. `forget` removes a refused token, which would otherwise take precedence over the session.
 */
export async function offerSignIn(base, to, forget) {
  const response = await fetch(`${base}/api/session`).catch(() => null)
  const { issuers } = response?.ok ? await response.json() : { issuers: [] }
  const links = issuers.map(({ title, url }) => {
    const link = h('a', { class: 'button', href: `${url}&to=${encodeURIComponent(to)}` }, TEXTS.signIn.at(title))
    link.addEventListener('click', forget)
    return link
  })
  find('#sign-in').replaceChildren(...links)
  find('#sign-in').hidden = !links.length
  if (links.length) setText(find('#ask-token-title'), TEXTS.signIn.title)
}

/** Shows who has signed in, and a button that ends the session here and at the issuer. `forgetting`: see main.js. */
export async function showAccount(client, forgetting) {
  const { session } = await client.request('GET', '/api/session')
  if (!session) return
  setText(find('#who'), session.name ?? session.owner)
  find('#who').title = `${session.owner} · ${session.issuer}`
  find('#account').hidden = false
  find('#sign-out').addEventListener('click', async () => {
    const forget = forgetting()
    const { logout_url } = await client.request('DELETE', '/api/session')
    await forget()
    location.assign(logout_url ?? `${client.base}/`)
  })
}
