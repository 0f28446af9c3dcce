"""A TCP proxy that can be told to fail: flaky_proxy.py LISTEN_PORT TARGET_PORT FOLDER

While FOLDER/cut exists, connections are reset after 20,000 bytes from the target; while FOLDER/dead exists, before the
first; while FOLDER/slow exists, they carry about 300 KB/s. On loopback only.
"""

import asyncio
import os
import socket
import struct
import sys

listen_port, target_port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
CUT_AFTER = 20_000
CHUNK = 16_384


def told(word):
    return os.path.exists(os.path.join(folder, word))


def reset(writer):
    """Ends the connection with a reset and no FIN, as a link that broke does."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def copy(reader, writer, answers):
    carried = 0
    while data := await reader.read(CHUNK):
        carried += len(data)
        if answers and (told("dead") or told("cut") and carried > CUT_AFTER):
            reset(writer)
            return
        writer.write(data)
        await writer.drain()
        if answers and told("slow"):
            await asyncio.sleep(len(data) / 300_000)
    writer.write_eof()


async def serve(client_reader, client):
    try:
        target_reader, target = await asyncio.open_connection("127.0.0.1", target_port)
    except OSError:
        client.close()
        return
    asking = asyncio.create_task(copy(client_reader, target, False))
    try:
        await copy(target_reader, client, True)
        await asking
    except OSError:
        pass
    asking.cancel()
    client.close()
    target.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", listen_port)
    await server.serve_forever()


asyncio.run(main())
