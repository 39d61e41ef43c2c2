/**
 * Comes back after a cut, behind the steps that the page has; sends the last message alone; stops the answer when the page
 * stops.
 * @template {UIMessage} [Message=UIMessage]
 * @extends {DefaultChatTransport<Message>}
 */
export class TurnstreamChatTransport<Message extends UIMessage = UIMessage<any, import("ai").UIDataTypes, import("ai").UITools>> extends DefaultChatTransport<Message> {
    /**
     * @param {HttpChatTransportInitOptions<Message> & {stopOnAbort?: boolean, idOf?: IdOf}} [options] those of
     *   DefaultChatTransport; `stopOnAbort`: false lets an answer go on when the page stops; `idOf` returns the id of a chat on
     *   the server, where the page has another one
     */
    constructor({ api, stopOnAbort, idOf, ...options }?: HttpChatTransportInitOptions<Message> & {
        stopOnAbort?: boolean;
        idOf?: IdOf;
    });
    stopOnAbort: boolean;
    idOf: IdOf;
    /**
     * Cancels the answer of a chat.
     * @param {{chatId: string, headers?: HeadersInit}} options
     */
    stop({ chatId, headers }: {
        chatId: string;
        headers?: HeadersInit;
    }): Promise<void>;
    #private;
}
export type IdOf = (chatId: string) => string | Promise<string>;
import type { UIMessage } from 'ai';
import { DefaultChatTransport } from 'ai';
import type { HttpChatTransportInitOptions } from 'ai';
