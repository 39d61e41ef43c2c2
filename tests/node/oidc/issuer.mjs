// An OpenID provider on a free port, whose forms sign anybody in. Prints its address.
import { createServer } from 'node:http'
import Provider from 'oidc-provider'

const [clientId, secret, base] = process.argv.slice(2)
const server = createServer()
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
const issuer = `http://127.0.0.1:${server.address().port}`
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: clientId,
      client_secret: secret,
      redirect_uris: [`${base}/login/callback/main`],
      post_logout_redirect_uris: [`${base}/`],
      grant_types: ['authorization_code'],
      response_types: ['code'],
    },
  ],
  scopes: ['openid', 'groups'],
  claims: { openid: ['sub'], profile: ['name'], groups: ['groups'] },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  pkce: { required: () => true },
  cookies: { keys: ['a key of the cookies'] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: `Person ${id}`, groups: [id === 'grace' ? 'staff' : 'guest'] }),
  }),
})
server.on('request', provider.callback())
console.log(issuer)
