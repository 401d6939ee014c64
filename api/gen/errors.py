"""What is wrong with the table: the message names the entry and the column."""


class TableError(Exception):
    pass
